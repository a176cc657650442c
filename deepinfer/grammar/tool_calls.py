"""Grammars of tool calls in DSML, the markup of V4 and V4.1.

What each byte of the markup is comes from recipe.md 2.2, 2.3 and Appendix A. It does not know how
tools are shown to the model, nor how calls are read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from deepinfer.errors import RequestError
from deepinfer.grammar.answer import ANSWER_KINDS, answer_rule
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.json_schema import check_compiles, json_options, prepare_schema
from deepinfer.grammar.json_text import Json, read_json, write_json
from deepinfer.grammar.library import grammar_of
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.raw_text import CLOSING, any_text, split_schema, text_terminal
from deepinfer.grammar.regex import escape
from deepinfer.grammar.schema_nodes import Schema
from deepinfer.grammar.start import AT_ONCE, AtEach, Start
from deepinfer.grammar.vocabulary import Vocabulary

DSML = "｜DSML｜"
assert f"</{DSML}" == CLOSING
OPENING = "\n\n<"  # before the mark of the first tag
DialectName = Literal["v4", "v4.1"]


@dataclass(frozen=True)
class Dialect:
    """Names of the three tags, a leading blank included.

    Attributes:
        block, invoke, parameter: the names.
        empty_call: what a call without arguments holds.
    """

    block: str
    invoke: str
    parameter: str
    empty_call: str


DIALECTS: Mapping[DialectName, Dialect] = {
    "v4": Dialect("tool_calls", "invoke", "parameter", ""),
    "v4.1": Dialect(" calls", " invoke", " parameter", "\n"),
}


@dataclass(frozen=True)
class Tool:
    """A function the model may call.

    Attributes:
        name: without quotes, `<` and control characters.
        parameters: JSON Schema of its arguments, an object; None = none.
        strict: the arguments satisfy the schema, with no further ones. Otherwise they are any.
    """

    name: str
    parameters: Mapping[str, object] | None = None
    strict: bool = False


def tool_calls(
    tools: Sequence[Tool],
    dialect: DialectName,
    *,
    required: bool,
    parallel: bool = True,
    answer: Constraint | None = None,
) -> Constraint:
    """A demand on the calls in a text.

    Args:
        tools: at least one; for a named choice, only that tool.
        dialect: the markup.
        required: the prompt ends with the opened block, and the text goes on in it. Otherwise the
            text is free until it opens a block itself (see `tool_start`).
        parallel: a block may hold several calls.
        answer: what a text without calls must satisfy; of `ANSWER_KINDS`. The text is then either
            that or one block of calls, from its beginning to its end.

    Raises:
        RequestError: no tool, two of one name, a schema that is no JSON, or an answer that would
            not be possible or is an EBNF grammar.
    """
    if not tools:
        raise RequestError("tool calls need at least one tool")
    names = [tool.name for tool in tools]
    for place, name in enumerate(names):
        _check_name(f"tools[{place}].name", name)
        if name in names[:place]:
            raise RequestError(f"tools[{place}].name {name!r} is taken by another tool")
    listed = [
        {"name": tool.name, "parameters": tool.parameters, "strict": tool.strict} for tool in tools
    ]
    if answer is not None and (required or answer.kind not in ANSWER_KINDS):
        why = "a call is required" if required else f"use one of {', '.join(ANSWER_KINDS)}"
        raise RequestError(f"tools beside an answer ({answer.kind}): {why}")
    demand = {
        "tools": listed,
        "dialect": dialect,
        "required": required,
        "parallel": parallel,
        "answer": None if answer is None else asdict(answer),
    }
    try:
        return Constraint("tool_calls", json.dumps(demand, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"tools: parameters are no JSON Schema: {error}") from None


def tool_start(vocabulary: Vocabulary, *, required: bool) -> Start:
    """When the grammar of `tool_calls` begins: at once, or at each `<` before the DSML mark.

    With an answer beside the calls it begins at once, or after the thinking.
    """
    return AT_ONCE if required else AtEach(_mark_id(vocabulary), b"<")


def translate_tool_calls(source: str, vocabulary: Vocabulary, limits: Limits) -> str:
    """A grammar of a block of calls, from where `tool_start` begins it.

    Raises:
        RequestError: a tool's schema cannot be enforced; with the tool and the JSON pointer.
    """
    # Four levels of ours stand above the schemas.
    demand = cast("dict[str, Json]", read_json(source, limits.nesting + 4, "tools"))
    dialect = DIALECTS[cast(DialectName, demand["dialect"])]
    writer = _Writer(dialect, f"<[{_mark_id(vocabulary)}]>", limits)
    for place, tool in enumerate(cast("list[dict[str, Json]]", demand["tools"])):
        writer.add_tool(place, tool)
    required, answer = bool(demand["required"]), cast("dict[str, Any] | None", demand["answer"])
    if answer is not None:
        writer.lines.append(f"answer: {answer_rule(Constraint(**answer), limits)}")
    return grammar_of(
        writer.text(required, parallel=bool(demand["parallel"]), answer=answer is not None)
    )


def _mark_id(vocabulary: Vocabulary) -> int:
    if DSML not in vocabulary.control_ids:
        raise RequestError(f"tool calls need the token {DSML}, which this tokenizer lacks")
    return vocabulary.control_ids[DSML]


def _check_name(where: str, name: str) -> None:
    if not name or any(char in '"<' or ord(char) < 32 for char in name):
        raise RequestError(
            f"{where} {name!r}: use a name without quotes, '<' and control characters"
        )


class _Writer:
    """Collects rules. A parameter ends with a line break, and so does the beginning of a call."""

    def __init__(self, dialect: Dialect, mark: str, limits: Limits):
        self.dialect = dialect
        self.mark = mark
        self.limits = limits
        self.options = json_options(Constraint("json_object", ""), limits)
        self.calls = 0
        self.texts = 0
        self.lines = [
            r'FREE_NAME: /[^"<\\\\\x00-\x1F]*/',
            f"PARAMETER_END: {_literal(dialect.parameter + '>' + chr(10))}",
            f"call_end: {_literal('</')} {mark} {_literal(dialect.invoke + '>')}",
            f"empty_end: {_literal(dialect.empty_call + '</')} {mark} "
            f"{_literal(dialect.invoke + '>')}",
        ]

    def text(self, required: bool, *, parallel: bool, answer: bool) -> str:
        """The whole grammar."""
        lead = _literal("<" if required else f"{self.dialect.block}>\n<")
        if answer:  # what opens the block is part of the grammar then
            lead = f"answer | {_literal(OPENING)} {self.mark} {lead}"
        more = f"({_literal(chr(10) + '<')} {self.mark} call)*" if parallel else ""
        end = f"{_literal(chr(10) + '</')} {self.mark} {_literal(self.dialect.block + '>')}"
        return "\n".join(
            [
                f"start: {lead} {self.mark} call {more} {end}",
                f"call: {' | '.join(f'call{number}' for number in range(self.calls))}",
                *self.lines,
            ]
        )

    def add_tool(self, number: int, tool: Mapping[str, Json]) -> None:
        """Rules of one tool's calls."""
        self.calls += 1
        head = _literal(f'{self.dialect.invoke} name="{tool["name"]}">\n')
        where = f"tools[{number}] ({tool['name']})"
        try:
            if tool["strict"]:
                first = self.strict_parameters(number, tool["parameters"])
            else:
                first = self.free_parameters(number)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from None
        self.lines.append(f"call{number}: {head} {first}")

    def free_parameters(self, number: int) -> str:
        """Any number of parameters, each with any name and value."""
        free = f"free{number}"
        head = _literal(f'{self.dialect.parameter} name="')
        values = [
            f"{head} FREE_NAME {_literal(_quoted_flag(True))} {self.terminal(any_text())}",
            f"{head} FREE_NAME {_literal(_quoted_flag(False))} {self.json_rule({})}",
        ]
        self.lines.append(f"{free}: {self.parameter(values)}")
        return f"({free} {free}* call_end | empty_end)"

    def strict_parameters(self, number: int, parameters: Json) -> str:
        """The parameters of a schema in its order, those that are not required if wanted."""
        schema = self.checked(parameters)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        assert isinstance(properties, dict)
        assert isinstance(required, list)
        if unknown := [name for name in required if name not in properties]:
            raise RequestError(f"required {unknown} are no properties; a strict tool has no others")
        # any<i>: from parameter i on, with one before it; some<i>: with none before it.
        rules: list[str] = []
        for place, (name, value) in enumerate(properties.items()):
            here, after = f"p{number}_{place}", f"{number}_{place + 1}"
            self.lines.append(f"{here}: {self.parameter(self.values(name, value, schema))}")
            skip = name not in required
            for state in ("any", "some"):
                other = f" | {state}{after}" if skip else ""
                rules.append(f"{state}{number}_{place}: {here} any{after}{other}")
        last = f"{number}_{len(properties)}"
        self.lines += [*rules, f"any{last}: call_end", f"some{last}: empty_end"]
        return f"some{number}_0"

    def checked(self, parameters: Json) -> Schema:
        """The schema of a strict tool's arguments.

        Raises:
            RequestError: it is not one of a closed object, or cannot be enforced.
        """
        schema, nodes = prepare_schema(parameters or {}, self.limits, open_objects=False)
        known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
        if extra := sorted(set(schema) - known):
            raise RequestError(f"json schema at #: {extra[0]} is not possible in a strict tool")
        if schema.get("type", "object") != "object":
            raise RequestError(
                f"json schema at #: type {schema['type']!r}; arguments are an object"
            )
        if schema.get("additionalProperties", False) is not False:
            raise RequestError(
                "json schema at #: additionalProperties must be false in a strict tool"
            )
        check_compiles(grammar_of(f"start: %json {write_json(schema)}"), schema, nodes, self.limits)
        return schema

    def values(self, name: str, schema: Json, root: Schema) -> list[str]:
        """What can stand between `<DSML` and the mark that closes the parameter."""
        _check_key(name)
        strings, others = split_schema(schema, root)
        head = f'{self.dialect.parameter} name="{name}'
        values = [
            _literal(head + _quoted_flag(True))
            + " "
            + self.terminal(text_terminal(one, self.limits))
            for one in strings
        ]
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        for one in others:
            assert isinstance(one, dict)
            if CLOSING in write_json(one):
                raise RequestError(f"a value of {name!r} holds {CLOSING}, which would end it")
            rule = self.json_rule({**one, **definitions})
            values.append(f"{_literal(head + _quoted_flag(False))} {rule}")
        if not values:
            raise RequestError(f"no value is possible for {name!r}; leave it out of the properties")
        return values

    def parameter(self, values: list[str]) -> str:
        """A whole parameter with one of `values`."""
        return f"{_literal('<')} {self.mark} ({' | '.join(values)}) {self.mark} PARAMETER_END"

    def terminal(self, text: str) -> str:
        """A new terminal of raw text."""
        self.texts += 1
        self.lines.append(f"TEXT{self.texts}: {text}")
        return f"TEXT{self.texts}"

    def json_rule(self, schema: Schema) -> str:
        """A new rule of a JSON value and what closes it."""
        self.texts += 1
        embedded = write_json({**schema, "x-guidance": self.options})
        self.lines.append(f"json{self.texts}: %json {embedded}")
        return f"json{self.texts} {_literal('</')}"


def _quoted_flag(is_text: bool) -> str:
    """What follows the name of a parameter."""
    return f'" string="{"true" if is_text else "false"}">'


def _literal(text: str) -> str:
    return f"/{escape(text)}/"


def _check_key(name: str) -> None:
    if any(char in '"<' or ord(char) < 32 for char in name):
        raise RequestError(
            f"property {name!r}: a name with quotes, '<' or control characters cannot be written"
        )
