"""Tagged parts in free text: after a trigger a tag must follow, whose content has a grammar.

The form is the one that vLLM and xgrammar users know as `structural_tag`. It does not know the
markup of the model itself, whose marks are tokens: that is `tool_calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepinfer.errors import RequestError
from deepinfer.grammar.answer import answer_rule
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.json_text import Json, read_json, write_json
from deepinfer.grammar.library import grammar_of
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.regex import escape
from deepinfer.grammar.vocabulary import Vocabulary

_ANY = "/(?s:.*)/"
_MOST_TAGS = 1_000
_OURS = 8  # levels of nesting that stand above a schema


@dataclass(frozen=True)
class _Tag:
    begin: str
    content: Constraint
    end: str


@dataclass(frozen=True)
class _Tags:
    triggers: list[str]
    tags: list[_Tag]
    at_least_one: bool
    stop_after_first: bool


def translate_structural_tag(source: str, vocabulary: Vocabulary, limits: Limits) -> str:
    """A grammar of free text in which tags stand behind their triggers, and only there.

    Args:
        source: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, or
            `{"type": "structural_tag", "format": {"type": "triggered_tags", ...}}` with contents of
            the types `json_schema` and `regex`.
        vocabulary: of the model.
        limits: of nesting and size.

    Raises:
        RequestError: the form is unknown, or a content cannot be enforced; with its tag.
    """
    read = _read(read_json(source, limits.nesting + _OURS, "structural_tag"))
    _check(read, vocabulary)
    lines = [f"TEXT: {_ANY}"]
    for number, trigger in enumerate(read.triggers):
        bodies: list[str] = []
        for place, tag in enumerate(read.tags):
            if not tag.begin.startswith(trigger):
                continue
            try:
                rule = answer_rule(tag.content, limits)
            except RequestError as error:
                raise RequestError(f"structural_tag, tag {tag.begin!r}: {error}") from None
            lines.append(f"content{number}_{place}: {rule}")
            rest = tag.begin.removeprefix(trigger)
            bodies.append(f"{_literal(rest)} content{number}_{place} {_literal(tag.end)}")
        # It ends where the trigger is complete for the first time.
        lines.append(f"trigger{number}[lazy]: {_ANY} {_literal(trigger)}")
        lines.append(f"part{number}: trigger{number} ({' | '.join(bodies)})")
    part = f"({' | '.join(f'part{number}' for number in range(len(read.triggers)))})"
    if read.stop_after_first:
        start = part if read.at_least_one else f"{part} | TEXT"
    else:
        start = f"{part}{'+' if read.at_least_one else '*'} TEXT"
    return grammar_of("\n".join([f"start: {start}", *lines]))


def _literal(text: str) -> str:
    return f"/{escape(text)}/" if text else ""


def _read(value: Json) -> _Tags:
    form = _object(value, "structural_tag")
    if "structures" in form:
        _known(form, {"type", "structures", "triggers"}, "structural_tag")
        tags = [_old_tag(tag) for tag in _list(form["structures"], "structures")]
        return _Tags(_strings(form.get("triggers"), "triggers"), tags, False, False)
    _known(form, {"type", "format"}, "structural_tag")
    inner = _object(form.get("format"), "structural_tag.format")
    if inner.get("type") != "triggered_tags":
        raise RequestError(
            f"structural_tag.format of type {inner.get('type')!r}; only 'triggered_tags' is "
            "possible here: for other forms write an EBNF grammar"
        )
    names = {"type", "triggers", "tags", "at_least_one", "stop_after_first"}
    _known(inner, names, "structural_tag.format")
    return _Tags(
        _strings(inner.get("triggers"), "triggers"),
        [_new_tag(tag) for tag in _list(inner.get("tags"), "tags")],
        bool(inner.get("at_least_one", False)),
        bool(inner.get("stop_after_first", False)),
    )


def _old_tag(value: Json) -> _Tag:
    tag = _object(value, "structures entry")
    _known(tag, {"begin", "schema", "end"}, "structures entry")
    schema = Constraint("json_schema", write_json(tag.get("schema")))
    return _Tag(_string(tag.get("begin"), "begin"), schema, _string(tag.get("end", ""), "end"))


def _new_tag(value: Json) -> _Tag:
    tag = _object(value, "tags entry")
    _known(tag, {"type", "begin", "content", "end"}, "tags entry")
    content = _object(tag.get("content"), "content")
    kind = content.get("type")
    if kind == "json_schema":
        _known(content, {"type", "json_schema"}, "content")
        constraint = Constraint("json_schema", write_json(content.get("json_schema")))
    elif kind == "regex":
        _known(content, {"type", "pattern"}, "content")
        constraint = Constraint("regex", _string(content.get("pattern"), "pattern"))
    else:
        raise RequestError(f"structural_tag, content of type {kind!r}: use json_schema or regex")
    return _Tag(_string(tag.get("begin"), "begin"), constraint, _string(tag.get("end"), "end"))


def _check(read: _Tags, vocabulary: Vocabulary) -> None:
    triggers = read.triggers
    if not triggers or not read.tags or len(read.tags) > _MOST_TAGS:
        raise RequestError(f"structural_tag: give a trigger, and 1 to {_MOST_TAGS} tags")
    for one in triggers:
        if not one or any(one in other for other in triggers if other is not one):
            raise RequestError(f"structural_tag: trigger {one!r} is empty or part of another one")
        if not any(tag.begin.startswith(one) for tag in read.tags):
            raise RequestError(f"structural_tag: no tag begins with the trigger {one!r}")
    for tag in read.tags:
        if not any(tag.begin.startswith(one) for one in triggers):
            raise RequestError(f"structural_tag: tag {tag.begin!r} begins with no trigger")
        for text in (tag.begin, tag.end):
            if found := next((name for name in vocabulary.control_ids if name in text), None):
                raise RequestError(
                    f"structural_tag: {found!r} in {text!r} is a token of its own, which text "
                    "cannot spell; calls in the markup of the model come from `tools`"
                )


def _object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be an object")
    return value


def _known(value: Mapping[str, Json], names: set[str], where: str) -> None:
    if unknown := sorted(set(value) - names):
        raise RequestError(f"{where}: {unknown} is unknown; known are {sorted(names)}")


def _list(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise RequestError(f"structural_tag: {where} must be a list")
    return value


def _string(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"structural_tag: {where} must be text")
    return value


def _strings(value: Json, where: str) -> list[str]:
    return [_string(item, where) for item in _list(value, where)]
