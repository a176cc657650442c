"""Every schema inside a JSON Schema that says something about a text, checked one by one.

It refuses by name and position what cannot be enforced. It does not know the matching library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import cast
from urllib.parse import quote, unquote

from deepinfer.errors import RequestError
from deepinfer.grammar.json_text import Json
from deepinfer.grammar.keywords import ANNOTATIONS, ENFORCED, FORMATS, REFUSED, TYPES, Shape
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.regex import check_regex

Schema = dict[str, Json]
Nodes = dict[str, Schema]  # JSON pointer -> schema

_LISTS = {"draft-06": True, "draft-07": True, "2019-09": True, "2020-12": False}
_MOST_COUNT = 1 << 31
_INT64_MAX = (1 << 63) - 1
_UNWRITABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")


def reachable_schemas(root: Json, limits: Limits) -> Nodes:
    """All schemas that the whole one uses, itself ("") first; boolean ones are left out.

    Raises:
        RequestError: a keyword is unknown, cannot be enforced or has a value that is none; with
            its JSON pointer.
    """
    nodes: Nodes = {}
    waiting: list[tuple[str, Json]] = [("", root)]
    lists_allowed = _item_lists_allowed(root)
    while waiting:
        pointer, schema = waiting.pop()
        if isinstance(schema, bool) or pointer in nodes:
            continue
        if not isinstance(schema, dict):
            raise RequestError(f"{_at(pointer)}: {schema!r} is no schema; use an object")
        nodes[pointer] = schema
        for keyword, value in schema.items():
            _check_keyword(pointer, keyword, value, lists_allowed, limits)
        _check_together(pointer, schema)
        below = list(children(pointer, schema))
        if isinstance(target := schema.get("$ref"), str):
            below.append((pointer_of(target), resolve(root, pointer, target)))
        waiting.extend(reversed(below))
    return nodes


def children(pointer: str, schema: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """(JSON pointer, schema) of the schemas directly inside one, definitions left out."""
    for keyword, value in schema.items():
        shape, base = ENFORCED.get(keyword), f"{pointer}/{keyword}"
        if keyword in ("$defs", "definitions"):
            continue
        if shape == "schema" or (shape == "items" and not isinstance(value, list)):
            yield base, value
        elif shape in ("schemas", "items") and isinstance(value, list):
            yield from ((f"{base}/{place}", item) for place, item in enumerate(value))
        elif shape == "schema map" and isinstance(value, dict):
            yield from ((f"{base}/{escape_pointer(name)}", item) for name, item in value.items())


def escape_pointer(name: str) -> str:
    """`name` as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def pointer_of(target: str) -> str:
    """The JSON pointer in a `$ref`, which is written as part of an address (RFC 3986)."""
    return unquote(target[1:])


def reference_to(pointer: str) -> str:
    """A `$ref` to a JSON pointer of the same schema."""
    return f"#{quote(pointer, safe='/~')}"


def resolve(root: Json, pointer: str, target: str) -> Json:
    """What a `$ref` of the schema at `pointer` points to.

    Raises:
        RequestError: it is no JSON pointer into the same schema, or points nowhere.
    """
    where = f"{_at(pointer)}: $ref {target!r}"
    if target != "#" and not target.startswith("#/"):
        raise RequestError(
            f"{where} is not inside this schema; use a JSON pointer, such as #/$defs/name"
        )
    found = root
    for step in pointer_of(target).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise RequestError(f"{where} points to nothing: there is no {name!r}")
    return found


def _at(pointer: str) -> str:
    return f"json schema at #{pointer}"


def _item_lists_allowed(root: Json) -> bool:
    """Whether `items` may be a list: up to draft 2019-09."""
    draft = root.get("$schema") if isinstance(root, dict) else None
    if draft is None:
        return False
    for name, allowed in _LISTS.items():
        if isinstance(draft, str) and name in draft:
            return allowed
    raise RequestError(f"$schema {draft!r}: known drafts are {', '.join(_LISTS)}")


def _check_keyword(
    pointer: str, keyword: str, value: Json, lists_allowed: bool, limits: Limits
) -> None:
    at = _at(pointer)
    if keyword in ANNOTATIONS or (keyword == "$id" and not pointer):
        return
    if keyword == "uniqueItems" and value is False:
        return
    shape = ENFORCED.get(keyword)
    if shape is None:
        if keyword in REFUSED:
            raise RequestError(f"{at}: {keyword} cannot be enforced; {REFUSED[keyword]}")
        near = get_close_matches(keyword, [*ENFORCED, *ANNOTATIONS], 1)
        hint = f"; {near[0]} is one" if near else "; leave it out, nothing would enforce it"
        raise RequestError(f"{at}: {keyword!r} is no keyword of JSON Schema{hint}")
    if not _fits(shape, value):
        raise RequestError(f"{at}: {keyword} {_short(value)} must be {_WANTED[shape]}")
    if shape in ("number", "positive"):
        _check_exact(at, keyword, value)
        if abs(cast(float, value)) > _INT64_MAX:
            raise RequestError(f"{at}: {keyword} {_short(value)}: use a number below 2^63")
    if (keyword == "additionalItems" or isinstance(value, list) and shape == "items") and (
        not lists_allowed
    ):
        raise RequestError(f"{at}: {keyword} of older drafts; use prefixItems and items")
    if keyword == "format" and value not in FORMATS:
        raise RequestError(f"{at}: format {value!r} cannot be enforced; known: {sorted(FORMATS)}")
    if keyword in ("enum", "const", "required", "properties"):
        _check_values(at, keyword, value)
    if keyword == "pattern":
        check_regex(str(value), limits, f"{at}: pattern")
    if keyword == "patternProperties" and isinstance(value, dict):
        for pattern in value:
            check_regex(pattern, limits, f"{at}: patternProperties {pattern!r}")


def _check_values(at: str, keyword: str, value: Json) -> None:
    """Refuse what the library would not write as it is.

    That is text with a numeric escape, of which strings have none, and some numbers.
    """
    waiting: list[Json] = [value]
    if keyword == "properties" and isinstance(value, dict):
        waiting = [*value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and (found := _UNWRITABLE.search(item)):
            raise RequestError(
                f"{at}: {keyword} with the control character {found.group()!r} cannot be generated"
            )
        if isinstance(item, (int, float)):
            _check_exact(at, keyword, item)
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend([*item, *item.values()])


def _check_exact(at: str, keyword: str, value: Json) -> None:
    """Refuse a number that the library, which reads decimals as doubles, could read as another."""
    assert isinstance(value, (int, float))
    if isinstance(value, int):
        good = value == _INT64_MAX or (abs(value) <= 10**22 and int(float(value)) == value)
    else:
        _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        good = isinstance(exponent, int) and len(digits) <= 15 and abs(exponent) <= 22
    if not good:
        raise RequestError(
            f"{at}: {keyword} {_short(value)} has too many digits to be enforced; "
            "use at most 15, and an exponent of at most 22"
        )


def _check_together(pointer: str, schema: Schema) -> None:
    """Keywords that can be enforced only in some company."""
    least, required = schema.get("minProperties"), schema.get("required")
    named = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, named):
        # A free key may be written twice, which counts once in the parsed object.
        raise RequestError(
            f"{_at(pointer)}: minProperties {least} cannot be enforced; name them in required"
        )


_WANTED: Mapping[Shape, str] = {
    "any": "a value",
    "count": "an integer in [0, 2^31)",
    "items": "a schema",
    "list": "a list that is not empty",
    "number": "a number",
    "positive": "a number > 0",
    "schema": "a schema",
    "schema map": "an object of schemas",
    "schemas": "a list of schemas that is not empty",
    "string": "text",
    "strings": "a list of different strings",
    "type": f"one of {sorted(TYPES)}, or a list of them",
}


def _fits(shape: Shape, value: Json) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match shape:
        case "count":
            return isinstance(value, int) and number and 0 <= value < _MOST_COUNT
        case "number":
            return number
        case "positive":
            return isinstance(value, (int, float)) and number and value > 0
        case "string":
            return isinstance(value, str)
        case "strings":
            return (
                isinstance(value, list)
                and all(isinstance(item, str) for item in value)
                and len({str(item) for item in value}) == len(value)
            )
        case "type":
            types = value if isinstance(value, list) else [value]
            return bool(types) and all(isinstance(t, str) and t in TYPES for t in types)
        case "schema map":
            return isinstance(value, dict)
        case "schemas" | "list":
            return isinstance(value, list) and bool(value)
        case _:
            return True


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
