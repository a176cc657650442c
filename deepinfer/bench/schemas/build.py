"""Short spellings for JSON Schemas, so that two hundred of them can be read.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
REAL: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
NOTHING: Schema = {"type": "null"}


def record(properties: Mapping[str, Schema], **more: Any) -> Schema:
    """An object with these properties; names that end in `?` are optional. Closed, if not said."""
    named = {name.removesuffix("?"): schema for name, schema in properties.items()}
    schema: Schema = {"type": "object", "properties": named}
    if required := [name for name in properties if not name.endswith("?")]:
        schema["required"] = required
    return {**schema, "additionalProperties": False, **more}


def table(values: Schema, **more: Any) -> Schema:
    """An object with free names and values of one schema."""
    return {"type": "object", "additionalProperties": values, **more}


def many(items: Schema, least: int | None = None, most: int | None = None) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **_bounds("minItems", least, "maxItems", most)}


def row(*items: Schema) -> Schema:
    """An array with one schema for each place."""
    count = len(items)
    fixed = {"prefixItems": list(items), "items": False}
    return {"type": "array", **fixed, "minItems": count, "maxItems": count}


def text(least: int | None = None, most: int | None = None) -> Schema:
    """A string of so many characters."""
    return {"type": "string", **_bounds("minLength", least, "maxLength", most)}


def like(pattern: str, **more: Any) -> Schema:
    """A string in which a pattern is found."""
    return {"type": "string", "pattern": pattern, **more}


def form(name: str) -> Schema:
    """A string of a named format."""
    return {"type": "string", "format": name}


def whole(low: int | None = None, high: int | None = None, **more: Any) -> Schema:
    """An integer in a range."""
    return {"type": "integer", **_bounds("minimum", low, "maximum", high), **more}


def real(low: float | None = None, high: float | None = None, **more: Any) -> Schema:
    """A number in a range."""
    return {"type": "number", **_bounds("minimum", low, "maximum", high), **more}


def word(*values: Any) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


def fixed(value: Any) -> Schema:
    """This value."""
    return {"const": value}


def either(*branches: Schema) -> Schema:
    """What satisfies one branch or several."""
    return {"anyOf": list(branches)}


def both(*branches: Schema) -> Schema:
    """What satisfies all branches."""
    return {"allOf": list(branches)}


def maybe(schema: Schema) -> Schema:
    """The same, or null."""
    return either(schema, NOTHING)


def ref(name: str) -> Schema:
    """What stands under this name in `$defs`."""
    return {"$ref": f"#/$defs/{name}"}


def where(schema: Schema, **definitions: Schema) -> Schema:
    """A schema with its `$defs`."""
    return {**schema, "$defs": definitions}


def _bounds(low_name: str, low: float | None, high_name: str, high: float | None) -> Schema:
    named = ((low_name, low), (high_name, high))
    return {name: value for name, value in named if value is not None}
