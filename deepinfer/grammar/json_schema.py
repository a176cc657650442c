"""JSON Schemas in the language of the matching library.

What the library would ignore is refused before (`schema_nodes.py`); what it would let through
although no text can satisfy it is refused here. It does not know tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from deepinfer.errors import RequestError
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.json_text import Json, read_json, write_json
from deepinfer.grammar.keywords import ANNOTATIONS
from deepinfer.grammar.library import grammar_error, grammar_of, reason_of
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.raw_text import TEXT_FORMATS
from deepinfer.grammar.regex import check_regex
from deepinfer.grammar.schema_nodes import (
    Nodes,
    Schema,
    children,
    escape_pointer,
    pointer_of,
    reachable_schemas,
    reference_to,
)

# Between two JSON tokens: a few blanks, or one line break and an indentation. A model that would go
# on with white space for ever must come back to the text.
WHITESPACE = r"[ \t]{1,4}|\r?\n[ \t]{0,32}"
# Formats whose texts the library does not tell from such as 2026-02-29.
_EXACT_FORMATS = ("date", "date-time", "time")
# With one spelling for each string, an object cannot name a property twice.
_ESCAPES = r'"\bfnrt'
_MOST_LOCATED = 200
_MOVED = "/$defs/all"


def json_rule(constraint: Constraint, limits: Limits) -> str:
    """A rule for the JSON texts that satisfy the schema of a "json_schema" or "json_object".

    Objects have the properties that the schema names in its order, then further ones. Strings are
    written with the escapes of control characters, quotes and backslashes only, as UTF-8 otherwise.

    Raises:
        RequestError: the schema is none, or it holds what cannot be enforced or satisfied.
    """
    if constraint.kind == "json_object":
        root: Json = {"type": "object"}
    else:
        root = read_json(constraint.source, limits.nesting, "json schema")
    schema, nodes = prepare_schema(root, limits, constraint.open_objects)
    options = json_options(constraint, limits)
    rule = f"%json {write_json({**schema, 'x-guidance': options})}"
    check_compiles(grammar_of(f"start: {rule}"), schema, nodes, limits)
    return rule


def json_options(constraint: Constraint, limits: Limits) -> dict[str, Json]:
    """White space and escapes, as the library takes them."""
    options: dict[str, Json] = {"json_allowed_escapes": _ESCAPES, "whitespace_flexible": False}
    if constraint.any_whitespace:
        pattern = constraint.whitespace_pattern
        if pattern is not None:
            options["whitespace_pattern"] = _blank_pattern(pattern, limits)
        else:
            options["whitespace_pattern"] = WHITESPACE
        options["whitespace_flexible"] = True
    return options


def prepare_schema(root: Json, limits: Limits, open_objects: bool) -> tuple[Schema, Nodes]:
    """The schema without annotations, in place, and all schemas in it.

    Raises:
        RequestError: as `json_rule`, but for what only the library finds.
    """
    if root is False:
        raise RequestError("json schema: false allows no value")
    if root is True:
        root = {}
    nodes = reachable_schemas(root, limits)
    assert isinstance(root, dict)
    _check_ends(nodes)
    for node in nodes.values():
        for keyword in [k for k in node if k in ANNOTATIONS or k in ("uniqueItems", "$id")]:
            del node[keyword]
        if isinstance(target := node.get("$ref"), str):
            node["$ref"] = reference_to(pointer_of(target))
        if not open_objects and "properties" in node and "additionalProperties" not in node:
            node["additionalProperties"] = False
        if node.get("format") in _EXACT_FORMATS:
            _format_as_pattern(node)
    return root, nodes


def _format_as_pattern(node: Schema) -> None:
    pattern = f"^({TEXT_FORMATS[str(node.pop('format'))]})$"
    if "pattern" not in node:
        node["pattern"] = pattern
        return
    parts = node.setdefault("allOf", [])
    assert isinstance(parts, list)
    parts.append({"pattern": pattern})


def check_compiles(grammar: str, schema: Schema, nodes: Nodes, limits: Limits) -> None:
    """Refuse what the library refuses, with the innermost schema that causes it.

    Raises:
        RequestError: with the JSON pointer of that schema.
    """
    error = grammar_error(grammar, limits)
    if not error:
        return
    for pointer in list(reversed(nodes))[:_MOST_LOCATED]:
        alone: Schema = {"$ref": reference_to(_MOVED + pointer), "$defs": {"all": _moved(schema)}}
        part = grammar_of(f"start: %json {write_json(alone)}")
        if found := grammar_error(part, limits):
            raise RequestError(f"json schema at #{pointer}: {_reason(found)}")
    raise RequestError(f"json schema: {_reason(error)}")


def _reason(error: str) -> str:
    line = reason_of(error)
    if line.startswith("oneOf"):
        return "oneOf whose branches are not provably exclusive cannot be enforced; use anyOf"
    return line


def _moved(value: Json) -> Json:
    """`value` with its references as they are when it stands at `_MOVED`."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: reference_to(_MOVED + pointer_of(item))
        if key == "$ref" and isinstance(item, str)
        else _moved(item)
        for key, item in value.items()
    }


def _blank_pattern(pattern: str, limits: Limits) -> str:
    """`pattern`, in which `\\s` stands for the white space of JSON.

    Raises:
        RequestError: it is no regex, or it could match anything else, which would be no JSON.
    """
    check_regex(pattern, limits, "whitespace_pattern")
    rest = re.sub(r"\\[nrts]|[ \n\r\t]|\{\d*,?\d*\}|\(\?:|[\[\]()|*+?]", "", pattern)
    if rest:
        raise RequestError(
            f"whitespace_pattern {pattern!r}: {rest[0]!r} is no white space of JSON; use blanks, "
            r"\n, \r, \t, groups and repeats"
        )
    inside = False
    parts: list[str] = []
    for part in re.findall(r"\\?.", pattern, re.DOTALL):
        inside = part == "[" or (inside and part != "]")
        blanks = r" \t\n\r"
        parts.append(part if part != r"\s" else blanks if inside else f"[{blanks}]")
    return "".join(parts)


def _check_ends(nodes: Nodes) -> None:
    """Refuse schemas that only an endless text could satisfy, such as one that needs itself.

    Raises:
        RequestError: with the JSON pointer of the first of them.
    """
    ends = dict.fromkeys(nodes, False)
    changed = True
    while changed:
        changed = False
        for pointer in reversed(nodes):
            if not ends[pointer] and _can_end(pointer, nodes[pointer], ends):
                ends[pointer] = changed = True
    for pointer, can in ends.items():
        if not can:
            raise RequestError(f"json schema at #{pointer}: it requires itself without end")


def _can_end(pointer: str, schema: Schema, ends: Mapping[str, bool]) -> bool:
    """Whether a value of `schema` can be finite if those that `ends` names can."""

    def fine(where: str) -> bool:
        return ends.get(where, True)  # boolean schemas have no entry; the library judges them

    if isinstance(target := schema.get("$ref"), str) and not fine(pointer_of(target)):
        return False
    inner = [where for where, _ in children(pointer, schema)]
    for keyword, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        branches = [w for w in inner if w.startswith(f"{pointer}/{keyword}/")]
        branches = [w for w in branches if w.count("/") == pointer.count("/") + 2]
        if branches and not enough(map(fine, branches)):
            return False
    if "enum" in schema or "const" in schema:
        return True
    types = schema.get("type", "null")
    return any(
        _type_can_end(name, pointer, schema, fine)
        for name in (types if isinstance(types, list) else [types])
    )


def _type_can_end(name: Json, pointer: str, schema: Schema, fine: Callable[[str], bool]) -> bool:
    if name == "object":
        required, named = schema.get("required"), schema.get("properties")
        for key in required if isinstance(required, list) else []:
            if isinstance(named, dict) and key in named:
                where = f"{pointer}/properties/{escape_pointer(str(key))}"
            elif "patternProperties" in schema:
                continue
            else:
                where = f"{pointer}/additionalProperties"
            if not fine(where):
                return False
    if name == "array":
        least, first = schema.get("minItems", 0), schema.get("prefixItems", schema.get("items"))
        count = len(first) if isinstance(first, list) else 0
        keyword = "prefixItems" if "prefixItems" in schema else "items"
        assert isinstance(least, int)
        if not all(fine(f"{pointer}/{keyword}/{place}") for place in range(min(count, least))):
            return False
        if least > count:
            rest = "additionalItems" if count and keyword == "items" else "items"
            return fine(f"{pointer}/{rest}")
    return True
