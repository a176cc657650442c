"""String arguments of tool calls: raw text between tags, under what a JSON Schema says of it.

It does not know the tags, but for the two characters and the mark that end a text.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.errors import RequestError
from deepinfer.grammar.json_text import Json
from deepinfer.grammar.keywords import TYPES
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.regex import check_regex, escape, regex_terminal, search_pattern
from deepinfer.grammar.schema_nodes import Schema, resolve

CLOSING = "</｜DSML｜"  # the first of them ends a value, however it is made of tokens

_TEXT_KEYWORDS = frozenset({"pattern", "minLength", "maxLength", "format"})
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
_MOST_REFS = 64

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_H = r"[0-9A-Fa-f]{1,4}"
_DAYS_30 = r"(0[1-9]|[12][0-9]|30)"
_DAY = rf"((0[13578]|1[02])-({_DAYS_30}|31)|(0[469]|11)-{_DAYS_30}|02-(0[1-9]|1[0-9]|2[0-8]))"
_FOURTH = r"(0[48]|[2468][048]|[13579][26])"  # of a hundred years or centuries, but the first
_LEAP_DAY = rf"([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29"
_YEAR = r"(0{3}[1-9]|0{2}[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DATE = rf"({_YEAR}-{_DAY}|{_LEAP_DAY})"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]+)?(Z|[+-]{_CLOCK})"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
# Source: RFC 3339 (without leap seconds, which depend on more than their digits), RFC 1123, RFC
# 2673, RFC 4291 and RFC 9562; addresses of RFC 5321 without quoted parts.
TEXT_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": "|".join(
        [
            rf"({_H}:){{7}}{_H}",
            rf"({_H}:){{6}}{_IPV4}",
            *(rf"({_H}:){{1,{7 - n}}}(:{_H}){{1,{n}}}" for n in range(1, 7)),
            rf"({_H}:){{1,7}}:",
            rf":(:{_H}){{1,7}}",
            "::",
        ]
    ),
    "time": _TIME,
    "uuid": r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}


def any_text() -> str:
    """A terminal: any text, and the two characters that begin what closes it."""
    return _closed(["/(?s:.*)/"])


def text_terminal(schema: Mapping[str, Json], limits: Limits) -> str:
    """A terminal: text that satisfies a string schema of `split_schema`, and what closes it.

    Raises:
        RequestError: a keyword cannot be enforced here.
    """
    parts: list[str] = []
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        assert isinstance(values, list)
        texts = [value for value in values if isinstance(value, str)]
        if any(CLOSING in text for text in texts):
            raise RequestError(f"a string value holds {CLOSING}, which would end it")
        parts.append(f"/({'|'.join(map(escape, texts))})/")
    if "pattern" in schema:
        pattern = str(schema["pattern"])
        check_regex(pattern, limits, "pattern")
        if pattern:
            parts.append(regex_terminal(search_pattern(pattern)))
    if "minLength" in schema or "maxLength" in schema:
        parts.append(f"/(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/")
    if "format" in schema:
        name = str(schema["format"])
        if name not in TEXT_FORMATS:
            raise RequestError(
                f"format {name!r} of a string argument; known: {sorted(TEXT_FORMATS)}"
            )
        parts.append(regex_terminal(TEXT_FORMATS[name]))
    return _closed(parts or ["/(?s:.*)/"])


def _closed(parts: list[str]) -> str:
    # That the text does not hold CLOSING is seen to where JSON values need the same: in masks.
    return f"({' & '.join(parts)}) /{escape('</')}/"


def split_schema(schema: Json, root: Schema, depth: int = 0) -> tuple[list[Schema], list[Json]]:
    """The string values of a schema, and all others, apart: they are written in different ways.

    Args:
        schema: checked by `schema_nodes.py`.
        root: what its references point into.
        depth: references and alternatives around it.

    Returns:
        Schemas of strings, with keywords about strings only; and schemas of other values. A value
        satisfies `schema` if it satisfies one of them.

    Raises:
        RequestError: strings cannot be told apart.
    """
    if depth > _MOST_REFS:
        raise RequestError("references and alternatives around a string argument are too deep")
    if schema is False:
        return [], []
    if schema is True:
        schema = {}
    assert isinstance(schema, dict)
    named = schema.get("type", sorted(TYPES))
    types = {str(name) for name in (named if isinstance(named, list) else [named])}
    combining = [keyword for keyword in _COMBINING if keyword in schema]
    rest = set(schema) - {"$defs", "definitions", *combining}
    if "string" in types and combining:
        if rest or len(combining) > 1 or combining[0] in ("allOf", "oneOf"):
            raise RequestError(
                f"{', '.join(combining)} around a string argument, with other keywords or at all, "
                'cannot be enforced; give it the type "string", or use anyOf alone'
            )
        value = schema[combining[0]]
        if isinstance(value, str):
            return split_schema(resolve(root, "", value), root, depth + 1)
        assert isinstance(value, list)
        parts = [split_schema(branch, root, depth + 1) for branch in value]
        return [s for strings, _ in parts for s in strings], [
            o for _, others in parts for o in others
        ]
    return _strings(schema, types), _others(schema, types)


def _strings(schema: Schema, types: set[str]) -> list[Schema]:
    kept = {key: value for key, value in schema.items() if key in _TEXT_KEYWORDS}
    for values in _values(schema):
        kept["enum"] = [value for value in values if isinstance(value, str)]
    return [kept] if "string" in types and kept.get("enum") != [] else []


def _others(schema: Schema, types: set[str]) -> list[Json]:
    kept: Schema = {key: value for key, value in schema.items() if key not in _TEXT_KEYWORDS}
    for values in _values(schema):
        kept.pop("const", None)
        kept["enum"] = [value for value in values if not isinstance(value, str)]
    kept["type"] = [*sorted(types - {"string"})]
    return [kept] if kept["type"] and kept.get("enum") != [] else []


def _values(schema: Schema) -> list[list[Json]]:
    """The values of `const` and `enum`, if any: those of both."""
    found: list[list[Json]] = []
    if "const" in schema:
        found.append([schema["const"]])
    values = schema.get("enum")
    if isinstance(values, list):
        found.append([value for value in values if not found or value == schema["const"]])
    return found[-1:]
