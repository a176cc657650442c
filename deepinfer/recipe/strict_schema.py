"""Strict schemas: closed objects of which every property is required (recipe.md 4.4).

It does not know who asks for strictness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from deepinfer.recipe.shapes import (
    Field,
    Reader,
    ShapeError,
    as_list,
    as_object,
    boolean,
    choice,
    int64,
    join,
    labelled,
    list_of,
    maybe,
    optional,
    record,
    string,
    tagged,
    wrong_type,
)

_SCALARS = ("string", "number", "integer", "boolean", "null")
_FORMATS = ("email", "hostname", "ipv4", "ipv6", "uuid")


@dataclass(frozen=True, slots=True)
class _Object:
    properties: dict[str, Any]  # name -> node
    closed: bool | None
    required: list[str] | None
    description: str | None
    path: str


class StrictFault(ValueError):
    """A schema of the right shape breaks a rule of strict schemas at `path`."""

    def __init__(self, text: str, path: str):
        self.path = path
        super().__init__(text)


def closed(schema: Any, path: str, top: str, *, empty_allowed: bool) -> dict[str, Any]:
    """A schema of an object with all its objects closed and nothing optional.

    Args:
        schema: a JSON value.
        path: its place in the request.
        top: what `schema` is, for the error about one that is no object.
        empty_allowed: the object itself may have no properties.

    Returns:
        The schema without the keywords that strict schemas do not know.

    Raises:
        ShapeError: it uses what strict schemas may not.
        StrictFault: it breaks a rule of strict schemas.
    """
    node = _node(schema, path)
    _check(node, empty_allowed)
    if not isinstance(node, _Object):
        raise StrictFault(f"The top level of the {top} schema must be an object.", path)
    return _written(node)


def _node(value: Any, path: str) -> Any:
    """Read a schema: an `_Object`, or the plain form in which it is written again.

    Raises:
        ShapeError: it is none.
    """
    members = as_object(value) or {}
    if "type" in members and as_list(members["type"]) is None:
        return _typed(members, path)
    for key, reader in (("type", list_of(choice(*_SCALARS))), ("anyOf", list_of(_typed))):
        if key in members:
            content = labelled(key, reader)(members, path)
            description = labelled("description", optional(string))(members, path)
            return _present({key: content, "description": description})
    if "$ref" in members:
        return {"$ref": labelled("$ref", string)(members, path)}
    raise ShapeError("one of `type`, `anyOf`, `$ref` field is required", path)


def _typed(value: Any, path: str) -> Any:
    return _TYPED(value, path)


def _object(value: Any, path: str) -> _Object:
    def make(
        properties: dict[str, Any] | None,
        additionalProperties: bool | None,
        required: list[str] | None,
        description: str | None,
    ) -> _Object:
        return _Object(properties or {}, additionalProperties, required, description, path)

    return record(
        make,
        "struct ObjectSchema",
        properties=maybe(_nodes),
        additionalProperties=maybe(boolean),
        required=maybe(list_of(string)),
        description=maybe(string),
    )(value, path)


def _nodes(value: Any, path: str) -> dict[str, Any]:
    members = as_object(value)
    if members is None:
        return wrong_type(value, "a map", path)
    return {key: _node(item, join(path, key)) for key, item in members.items()}


def _number(value: Any, path: str) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return wrong_type(value, "a JSON number", path)
    return value


def _plain(kind: str, /, **fields: Field) -> Reader[dict[str, Any]]:
    """A reader of a schema that is written again as its type and those fields that it has."""

    def make(**values: Any) -> dict[str, Any]:
        return {"type": kind, **_present({key: values[key] for key in fields})}

    return record(make, f"struct {kind.capitalize()}Schema", **fields)


def _bounds(reader: Callable[[Any, str], int | float]) -> dict[str, Field]:
    names = (
        "const",
        "default",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    )
    return {name: maybe(reader) for name in names}


def _present(members: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in members.items() if item is not None}


_DESCRIBED = {"description": maybe(string)}
_TYPED: Reader[Any] = tagged(
    "JsonSchemaType",
    "type",
    {
        "object": _object,
        "string": _plain(
            "string",
            **_DESCRIBED,
            pattern=maybe(string),
            format=maybe(choice(*_FORMATS)),
            enum=maybe(list_of(string)),
        ),
        "number": _plain("number", **_DESCRIBED, **_bounds(_number)),
        "integer": _plain("integer", **_DESCRIBED, **_bounds(int64)),
        "boolean": _plain("boolean", **_DESCRIBED),
        "array": _plain("array", items=Field(_node), **_DESCRIBED),
        "null": _plain("null", **_DESCRIBED),
    },
)


def _check(node: Any, empty_allowed: bool) -> None:
    """Hold the objects in a node to the rules, innermost first."""
    if isinstance(node, _Object):
        if not node.properties and not empty_allowed:
            _fault("An object with no properties is not allowed.", node)
        for part in node.properties.values():
            _check(part, empty_allowed=False)
        _check_required(node)
        if node.closed:
            _fault("additionalProperties should not be true", node)
        return
    members: dict[str, Any] = node
    if "items" in members:
        _check(members["items"], empty_allowed=False)
    for part in members.get("anyOf", []):
        _check(part, empty_allowed=False)


def _check_required(node: _Object) -> None:
    if node.required is None:
        return
    seen: set[str] = set()
    for name in node.required:
        if name in seen:
            _fault(f"Duplicate required property '{name}'", node)
        if name not in node.properties:
            _fault(f"Required property '{name}' not found in object", node)
        seen.add(name)
    if len(seen) < len(node.properties):
        _fault("Required properties must match all properties in the object", node)


def _fault(text: str, node: _Object) -> NoReturn:
    raise StrictFault(text, node.path)


def _written(node: Any) -> Any:
    if isinstance(node, _Object):
        properties = {name: _written(part) for name, part in node.properties.items()}
        members = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            "required": list(properties),
            "description": node.description,
        }
        return _present(members)
    members = dict(node)
    if "items" in members:
        members["items"] = _written(members["items"])
    if "anyOf" in members:
        members["anyOf"] = [_written(part) for part in members["anyOf"]]
    return members
