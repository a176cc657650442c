"""Reading a call that is written wrongly: the rules of the lenient mode.

It does not know where a call begins or ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from deepinfer.recipe.conversation import ToolDefinition

_NAME = re.compile(r"""\s*=\s*(["'])(.*?)\1\s*/?>""")
# Parameters that some answers put around all others; the second only around those of known tools.
_WRAPPERS = ("arguments", "input")
_TYPES: dict[type, str] = {float: "number", str: "string", list: "array", dict: "object"}

_encode = json.JSONEncoder(ensure_ascii=False).encode

# Parameters of a tool with the JSON types that its schema allows; an empty set allows all.
Fields: TypeAlias = Mapping[str, frozenset[str]]


def fields_of(tool: ToolDefinition) -> Fields:
    """The parameters that the schema of a tool names."""
    properties = _member(tool.parameters, "properties")
    if not isinstance(properties, dict):
        return {}
    schemas = cast("dict[str, object]", properties)
    return {name: _types(schema) for name, schema in schemas.items()}


def _types(schema: object) -> frozenset[str]:
    named = _member(schema, "type")
    names = cast("list[object]", named) if isinstance(named, list) else [named]
    return frozenset(name for name in names if isinstance(name, str))


def _member(schema: object, key: str) -> object:
    return cast("dict[str, object]", schema).get(key) if isinstance(schema, dict) else None


class Repair:
    """The rules for calls whose tags have one spelling of the DSML token.

    Args:
        tag: the spelling; empty for tags without the token.
        tools: the parameters of the tools that are known, by name.
    """

    def __init__(self, tag: str, tools: Mapping[str, Fields]) -> None:
        tag = re.escape(tag)
        self._tools = tools
        self._parameter = re.compile(
            rf"<{tag} ?parameter\s+name\s*=\s*([\"'])(?P<name>[^\n]{{0,256}}?)\1"
            rf"(?:\s+string\s*=\s*[\"']?(?P<string>true|false)[\"']?)?\s*>",
            re.IGNORECASE,
        )
        self._value_end = re.compile(rf"</{tag} ?param(?:eter)?>?")

    def call(self, source: str) -> tuple[str, str] | None:
        """Name and arguments of a call.

        Args:
            source: what stands between `<invoke name` and the end of the call.

        Returns:
            The name and a JSON object; None if there is no name.
        """
        match = _NAME.match(source)
        if match is None or not match.group(2).strip():
            return None
        name, body = match.group(2), source[match.end() :]
        fields = self._tools.get(name)
        pairs = self._pairs(body)
        if not pairs:
            plain = _loaded(body)
            return name, _encode(plain) if isinstance(plain, dict) else "{}"
        inner = _unwrapped(pairs, fields)
        if inner is not None:
            return name, _encode(inner)
        values = [
            f"{_encode(key)}: {_json_value(text, string, (fields or {}).get(key, frozenset()))}"
            for key, text, string in pairs
        ]
        return name, f"{{{', '.join(values)}}}"

    def _pairs(self, body: str) -> list[tuple[str, str, bool | None]]:
        """Name and text of every parameter, and whether it is said to be a string."""
        pairs: list[tuple[str, str, bool | None]] = []
        match = self._parameter.search(body)
        while match is not None:
            following = self._parameter.search(body, match.end())
            limit = len(body) if following is None else following.start()
            end = self._value_end.search(body, match.end(), limit)
            value = body[match.end() : limit if end is None else end.start()]
            if end is None:
                value = value.rstrip("\n")
            said = match.group("string")
            string = None if said is None else said.lower() == "true"
            pairs.append((match.group("name"), value, string))
            match = following
        return pairs


def _unwrapped(
    pairs: list[tuple[str, str, bool | None]], fields: Fields | None
) -> dict[str, Any] | None:
    """The object in a parameter that is wrapped around all others and that the tool lacks."""
    ((name, text, string), *more) = pairs
    if more or name not in _WRAPPERS or (fields is not None and name in fields):
        return None
    if fields is None and (string or name != _WRAPPERS[0]):
        return None
    inner = _loaded(text)
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else None


def _json_value(text: str, string: bool | None, types: frozenset[str]) -> str:
    """A value as JSON of one of the types; where they leave it open, as its tag says.

    What is not said to be a string and is no JSON becomes one.
    """
    value = _loaded(text)
    is_json = value is not None or text.strip() == "null"
    fits = is_json and not types.isdisjoint(_types_of(value))
    if string:
        return text.strip() if fits and "string" not in types else _encode(text)
    if not is_json or (not fits and "string" in types):
        return _encode(text)
    return text.strip()


def _types_of(value: object) -> set[str]:
    """The names that JSON Schema has for the type of a value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return {"integer", "number"}
    return {_TYPES.get(type(value), "null")}


def _loaded(text: str) -> Any:
    """The JSON value of a text; None also if it has none."""
    try:
        return cast("object", json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is not JSON")
