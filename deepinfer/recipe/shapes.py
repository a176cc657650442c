"""Readers of JSON values: each checks the shape of a value and makes it a plain object.

It does not know any protocol. The texts of errors are those that clients of this API know.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

from deepinfer.recipe.json_text import compact

T = TypeVar("T")
# (value, its place in the request) -> what is made of it.
Reader: TypeAlias = Callable[[Any, str], T]

_REQUIRED: Any = object()


class ShapeError(ValueError):
    """A value has not the shape that was expected at `path`. Turned into a border error."""

    def __init__(self, text: str, path: str):
        self.path = path
        super().__init__(text)


def any_value(value: Any, path: str) -> Any:
    """Accept all."""
    return value


def string(value: Any, path: str) -> str:
    """Accept text."""
    return value if isinstance(value, str) else wrong_type(value, "a string", path)


def boolean(value: Any, path: str) -> bool:
    """Accept true and false."""
    return value if isinstance(value, bool) else wrong_type(value, "a boolean", path)


def integer(name: str, least: int, most: int) -> Reader[int]:
    """A reader of integers in a range that is called `name`."""

    def read(value: Any, path: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            return wrong_type(value, name, path)
        if not least <= value <= most:
            raise ShapeError(f"invalid value: {described(value)}, expected {name}", path)
        return value

    return read


uint8 = integer("u8", 0, 2**8 - 1)
uint32 = integer("u32", 0, 2**32 - 1)
uint64 = integer("u64", 0, 2**64 - 1)
int64 = integer("i64", -(2**63), 2**63 - 1)


def float32(value: Any, path: str) -> float:
    """Accept a number and round it to 32 bits; what is too large becomes an infinity."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return wrong_type(value, "f32", path)
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def optional(reader: Reader[T]) -> Reader[T | None]:
    """A reader that also accepts null."""

    def read(value: Any, path: str) -> T | None:
        return None if value is None else reader(value, path)

    return read


def list_of(reader: Reader[T]) -> Reader[list[T]]:
    """A reader of lists."""

    def read(value: Any, path: str) -> list[T]:
        items = as_list(value)
        if items is None:
            return wrong_type(value, "a sequence", path)
        return [reader(item, f"{path}[{i}]") for i, item in enumerate(items)]

    return read


def text_or_list(reader: Reader[T], complaint: str) -> Reader[str | list[T]]:
    """A reader of a text or a list; all else is refused with `complaint`."""
    items = list_of(reader)

    def read(value: Any, path: str) -> str | list[T]:
        if isinstance(value, str):
            return value
        if as_list(value) is None:
            raise ShapeError(complaint, path)
        return items(value, path)

    return read


def choice(*names: str) -> Reader[str]:
    """A reader of one of several words."""
    known = frozenset(names)

    def read(value: Any, path: str) -> str:
        if not isinstance(value, str):
            if as_object(value) is not None:
                raise ShapeError("invalid value: map, expected map with a single key", path)
            return wrong_type(value, "string or map", path)
        return value if value in known else unknown_variant(value, names, path)

    return read


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record: how it is read, and what stands for it if it is missing."""

    reader: Reader[Any]
    default: Any = _REQUIRED


def maybe(reader: Reader[Any]) -> Field:
    """A field that may be missing or null."""
    return Field(optional(reader), None)


def record(make: Callable[..., T], name: str, /, **fields: Field) -> Reader[T]:
    """A reader of objects with known fields, in which unknown ones are ignored.

    Args:
        make: called with every field by its keyword.
        name: what errors call the object.
        fields: read in the order of the object, missed in the order given here.
    """

    def read(value: Any, path: str) -> T:
        members = as_object(value)
        if members is None:
            return _no_object(value, name, len(fields), path)
        values: dict[str, Any] = {}
        for key, item in members.items():
            field = fields.get(key)
            if field is not None:
                values[key] = field.reader(item, join(path, key))
        for key, field in fields.items():
            if key not in values:
                if field.default is _REQUIRED:
                    raise ShapeError(f"missing field `{key}`", path)
                values[key] = field.default
        return make(**values)

    return read


def _no_object(value: Any, name: str, fields: int, path: str) -> NoReturn:
    if value == []:
        elements = "element" if fields == 1 else "elements"
        raise ShapeError(f"invalid length 0, expected {name} with {fields} {elements}", path)
    wrong_type(value, name, path)


def tagged(name: str, tag: str, variants: dict[str, Reader[T]]) -> Reader[T]:
    """A reader of objects of several kinds, the kind in the field `tag`."""
    names = tuple(variants)

    def read(value: Any, path: str) -> T:
        members = {} if value == [] else as_object(value)
        if members is None:
            return wrong_type(value, f"internally tagged enum {name}", path)
        kind = variant_tag(members, tag, path)
        if kind not in variants:
            return unknown_variant(kind, names, join(path, tag))
        return variants[kind](value, path)

    return read


def variant_tag(members: dict[str, Any], tag: str, path: str) -> str:
    """The text in the field `tag`, which tells the kind of an object."""
    if tag not in members:
        raise ShapeError(f"missing field `{tag}`", path)
    kind = members[tag]
    if not isinstance(kind, str):
        return wrong_type(kind, "variant identifier", join(path, tag))
    return kind


def labelled(key: str, reader: Reader[T]) -> Callable[[dict[str, Any], str], T]:
    """A reader of one field of an object whose errors name the field; missing reads as null."""

    def read(members: dict[str, Any], path: str) -> T:
        try:
            return reader(members.get(key), join(path, key))
        except ShapeError as error:
            raise ShapeError(f"field `{key}`: {error}", error.path) from None

    return read


def as_object(value: Any) -> dict[str, Any] | None:
    """The value if it is an object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: Any) -> list[Any] | None:
    """The value if it is a list."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def join(path: str, key: str) -> str:
    """The place of a member."""
    return f"{path}.{key}" if path else key


def wrong_type(value: Any, expected: str, path: str) -> NoReturn:
    """Refuse a value of another type."""
    raise ShapeError(f"invalid type: {described(value)}, expected {expected}", path)


def unknown_variant(value: str, names: tuple[str, ...], path: str) -> NoReturn:
    """Refuse a word that is none of `names`."""
    quoted = [f"`{name}`" for name in names]
    expected = f"one of {', '.join(quoted)}" if len(quoted) > 2 else " or ".join(quoted)
    raise ShapeError(f"unknown variant `{value}`, expected {expected}", path)


def described(value: Any) -> str:
    """A value as errors show it: type and, unless it is a list or an object, content."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{compact(value)}`"
    if isinstance(value, str):
        return f"string {quoted(value)}"
    return "sequence" if isinstance(value, list) else "map"


def quoted(text: str) -> str:
    """Text in double quotes, with escapes for what cannot be shown."""
    return '"' + "".join(_shown(char) for char in text) + '"'


_ESCAPES = {"\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _shown(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"
