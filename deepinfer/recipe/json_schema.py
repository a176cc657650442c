"""Whether a JSON value is a JSON Schema (draft 2020-12), and if not, what is wrong first.

It does not know what schemas are for here, and it validates no values against them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from deepinfer.recipe.json_text import compact
from deepinfer.recipe.schema_uses import NEWEST_DRAFT, check_uses, complain
from deepinfer.recipe.shapes import ShapeError, as_list, as_object, join

# Checks a keyword's value at a path; raises ShapeError.
Check: TypeAlias = Callable[[Any, str], None]

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_DRAFT_4 = "http://json-schema.org/draft-04/schema"
_OLDER = (
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    _DRAFT_4,
)
_UNVERSIONED = "http://json-schema.org/schema"
_NO_ALTERNATIVE = "is not valid under any of the schemas listed in the 'anyOf' keyword"


def check_json_schema(schema: Any, path: str) -> None:
    """Accept JSON Schemas whose references can be resolved within them.

    Schemas that name an older draft are held to the same rules, except that `items` may be a list
    and in draft 4 `exclusiveMinimum` and `exclusiveMaximum` may be flags.

    Raises:
        ShapeError: the first thing that is wrong, with its place.
    """
    draft = _draft(schema, path)
    _SchemaCheck(draft).schema(schema, path)
    check_uses(schema, path)


def _draft(schema: Any, path: str) -> str:
    members = as_object(schema) or {}
    named = members.get("$schema", "")
    if not isinstance(named, str):
        return NEWEST_DRAFT
    draft = named.removesuffix("#") or NEWEST_DRAFT
    if draft not in (NEWEST_DRAFT, *_OLDER, _UNVERSIONED):
        raise ShapeError(
            f"Unknown meta-schema: '{named}'. Custom meta-schemas must be registered in the "
            "registry before use",
            join(path, "$schema"),
        )
    return draft


class _SchemaCheck:
    """The keywords of the draft, in the order in which their vocabularies are checked."""

    def __init__(self, draft: str):
        one, several, named = self.schema, self._list_of_schemas, self._map_of_schemas
        count = _both(_typed("integer"), _at_least_zero)
        text, number, flag = _typed("string"), _typed("number"), _typed("boolean")
        bound = _flag_or_number if draft == _DRAFT_4 else number
        self._vocabularies: tuple[dict[str, Check], ...] = (
            {
                "definitions": named,
                "dependencies": self._dependencies,
                "$recursiveAnchor": _spelled(r"^[A-Za-z_][-A-Za-z0-9._]*$"),
                "$recursiveRef": text,
            },
            {
                "$id": _spelled(r"^[^#]*#?$"),
                "$schema": text,
                "$ref": text,
                "$anchor": _spelled(r"^[A-Za-z_][-A-Za-z0-9._]*$"),
                "$dynamicRef": text,
                "$dynamicAnchor": _spelled(r"^[A-Za-z_][-A-Za-z0-9._]*$"),
                "$vocabulary": _typed("object"),
                "$comment": text,
                "$defs": named,
            },
            {
                "prefixItems": several,
                "items": self._schema_or_list if draft in _OLDER else one,
                **dict.fromkeys(("contains", "additionalProperties", "propertyNames"), one),
                **dict.fromkeys(("if", "then", "else", "not"), one),
                "properties": named,
                "patternProperties": named,
                "dependentSchemas": named,
                **dict.fromkeys(("allOf", "anyOf", "oneOf"), several),
            },
            {"unevaluatedItems": one, "unevaluatedProperties": one},
            {
                "type": _type_names,
                "enum": _typed("array"),
                "multipleOf": _both(number, _above_zero),
                **dict.fromkeys(("maximum", "minimum"), number),
                **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum"), bound),
                **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems"), count),
                **dict.fromkeys(("maxContains", "minContains"), count),
                **dict.fromkeys(("maxProperties", "minProperties"), count),
                "pattern": text,
                "uniqueItems": flag,
                "required": _names,
                "dependentRequired": _dependent_names,
            },
            {
                **dict.fromkeys(("title", "description"), text),
                **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), flag),
                "examples": _typed("array"),
            },
            {"format": text},
            {"contentEncoding": text, "contentMediaType": text, "contentSchema": one},
        )

    def schema(self, value: Any, path: str) -> None:
        """Check a schema and all within it."""
        members = as_object(value)
        if members is None:
            if not isinstance(value, bool):
                complain(value, 'is not of types "boolean", "object"', path)
            return
        for vocabulary in self._vocabularies:
            for key, item in members.items():
                if key in vocabulary:
                    vocabulary[key](item, join(path, key))

    def _map_of_schemas(self, value: Any, path: str) -> None:
        _typed("object")(value, path)
        for key, item in (as_object(value) or {}).items():
            self.schema(item, join(path, key))

    def _list_of_schemas(self, value: Any, path: str) -> None:
        _typed("array")(value, path)
        items = as_list(value) or []
        if not items:
            complain(value, "has less than 1 item", path)
        for i, item in enumerate(items):
            self.schema(item, f"{path}[{i}]")

    def _schema_or_list(self, value: Any, path: str) -> None:
        one = as_list(value) is None
        try:
            (self.schema if one else self._list_of_schemas)(value, path)
        except ShapeError:
            complain(value, _NO_ALTERNATIVE, path)

    def _dependencies(self, value: Any, path: str) -> None:
        _typed("object")(value, path)
        for key, item in (as_object(value) or {}).items():
            try:
                (self.schema if as_list(item) is None else _names)(item, join(path, key))
            except ShapeError:
                complain(item, _NO_ALTERNATIVE, join(path, key))


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    python = {"string": str, "number": (int, float), "array": list, "object": dict}
    return isinstance(value, python.get(kind, ()))


def _typed(kind: str) -> Check:
    def check(value: Any, path: str) -> None:
        if not _is(value, kind):
            complain(value, f'is not of type "{kind}"', path)

    return check


def _both(first: Check, second: Check) -> Check:
    def check(value: Any, path: str) -> None:
        first(value, path)
        second(value, path)

    return check


def _spelled(pattern: str) -> Check:
    form = re.compile(pattern)

    def check(value: Any, path: str) -> None:
        _typed("string")(value, path)
        if not form.fullmatch(value):
            complain(value, f'does not match "{pattern}"', path)

    return check


def _at_least_zero(value: Any, path: str) -> None:
    if value < 0:
        complain(value, "is less than the minimum of 0", path)


def _above_zero(value: Any, path: str) -> None:
    if value <= 0:
        complain(value, "is less than or equal to the minimum of 0", path)


def _flag_or_number(value: Any, path: str) -> None:
    if not isinstance(value, bool):
        _typed("number")(value, path)


def _type_names(value: Any, path: str) -> None:
    names = [value] if isinstance(value, str) else as_list(value) or []
    known = names and all(name in TYPES for name in names)
    if not known or len(set(names)) < len(names):
        complain(value, _NO_ALTERNATIVE, path)


def _names(value: Any, path: str) -> None:
    _typed("array")(value, path)
    items = as_list(value) or []
    if len({compact(item) for item in items}) < len(items):
        complain(value, "has non-unique elements", path)
    for i, item in enumerate(items):
        _typed("string")(item, f"{path}[{i}]")


def _dependent_names(value: Any, path: str) -> None:
    _typed("object")(value, path)
    for key, item in (as_object(value) or {}).items():
        _names(item, join(path, key))
