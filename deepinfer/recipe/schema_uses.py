"""What a JSON Schema uses: whether its references lead somewhere and its patterns compile.

It does not know what keywords may hold; `json_schema` has checked that before.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin

from deepinfer.recipe.json_text import compact
from deepinfer.recipe.shapes import ShapeError, as_list, as_object, join

NEWEST_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_MOST_DIGITS = 10  # an index with more is beyond any list
# Keywords with a schema, a list of schemas or named schemas, all of which a validator uses.
_ONE_SCHEMA = (
    "additionalProperties",
    "contains",
    "items",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAPS = ("dependencies", "dependentSchemas", "patternProperties", "properties")
# Keywords whose schemas a validator looks through for resources, used or not.
_ONE_KEPT = (*_ONE_SCHEMA, "contentSchema", "else", "if", "then")
_MAPS_KEPT = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def check_uses(schema: Any, path: str) -> None:
    """Accept schemas that need nothing but themselves, and patterns that compile.

    Raises:
        ShapeError: the first reference that leads nowhere or pattern that does not compile.
    """
    uses = _Uses(schema, path)
    uses.check_resources()
    uses.walk(schema, path)


class _Uses:
    def __init__(self, root: Any, path: str):
        self._root = root
        self._resources: dict[str, Any] = {"": root}  # by address
        # Where the references in an object count from: the address and the schema that has it.
        self._homes: dict[int, tuple[str, Any]] = {}
        self._references: list[tuple[str, str, str]] = []  # reference, address of home, path
        self._anchors: dict[str, Any] | None = None  # found when first needed
        self._seen: set[int] = set()
        self._collect(root, "", root, path)

    def _collect(self, value: Any, home: str, owner: Any, path: str) -> None:
        """Note the resources and references in a schema, used or not."""
        members = as_object(value)
        if members is None:
            return
        own = members.get("$id")
        if isinstance(own, str):
            home, owner = _joined(home, own.removesuffix("#"), join(path, "$id")), members
            self._resources[home] = members
        self._homes[id(members)] = (home, owner)
        for key, item in members.items():
            place = join(path, key)
            if key == "$ref" and isinstance(item, str):
                self._references.append((item, home, place))
            elif key in _ONE_KEPT and as_list(item) is None:
                self._collect(item, home, owner, place)
            elif key in _ONE_KEPT or key in _SCHEMA_LISTS:
                for i, part in enumerate(as_list(item) or []):
                    self._collect(part, home, owner, f"{place}[{i}]")
            elif key in _MAPS_KEPT:
                for name, part in (as_object(item) or {}).items():
                    self._collect(part, home, owner, join(place, name))

    def check_resources(self) -> None:
        """See that no reference needs a resource from elsewhere.

        Raises:
            ShapeError: one does.
        """
        for reference, home, path in self._references:
            self._resource(reference, home, self._root, path)

    def walk(self, value: Any, path: str) -> None:
        """Check a schema and all schemas that it uses, in the order of their keywords."""
        members = as_object(value)
        if members is None:
            if not isinstance(value, bool):
                complain(value, 'is not of types "boolean", "object"', path)
            return
        if id(members) in self._seen:
            return
        self._seen.add(id(members))
        for key, item in members.items():
            place = join(path, key)
            if key == "pattern":
                _regex(item, place)
            elif key in ("$ref", "$dynamicRef"):
                self._follow(item, members, place)
            elif key == "if":
                self._branches(members, path)
            elif key in _ONE_SCHEMA and as_list(item) is None:
                self.walk(item, place)
            elif key in _ONE_SCHEMA or key in _SCHEMA_LISTS:
                for i, part in enumerate(as_list(item) or []):
                    self.walk(part, f"{place}[{i}]")
            elif key in _SCHEMA_MAPS:
                self._walk_map(key, as_object(item) or {}, place)

    def _walk_map(self, key: str, schemas: dict[str, Any], path: str) -> None:
        for name, part in schemas.items():
            if key == "patternProperties":
                _regex(name, join(path, name))
            if as_list(part) is None:
                self.walk(part, join(path, name))

    def _branches(self, members: dict[str, Any], path: str) -> None:
        """A condition is used with its branches; without any it decides nothing."""
        if "then" in members or "else" in members:
            for key in ("if", "then", "else"):
                if key in members:
                    self.walk(members[key], join(path, key))

    def _follow(self, reference: str, members: dict[str, Any], path: str) -> None:
        home, owner = self._homes.get(id(members), ("", self._root))
        resource = self._resource(reference, home, owner, path)
        if resource is not None:
            fragment = unquote(reference.partition("#")[2])
            self.walk(self._find(resource, fragment, path), path)

    def _resource(self, reference: str, home: str, owner: Any, path: str) -> Any:
        """The schema that a reference counts in; None for the one that all schemas know."""
        target = reference.partition("#")[0]
        address = _joined(home, target, path)
        if not target or address == home:
            return owner
        if address in self._resources:
            return self._resources[address]
        if address == NEWEST_DRAFT:
            return None
        absolute = ":" in address
        why = f"Retrieval is disabled, cannot fetch {address}"
        raise ShapeError(
            f"Resource '{address if absolute else reference}' is not present in a registry and "
            f"retrieving it failed: {why if absolute else 'No base URI is available'}",
            path,
        )

    def _find(self, resource: Any, fragment: str, path: str) -> Any:
        if fragment and not fragment.startswith("/"):
            if self._anchors is None:
                self._anchors = _anchors(self._root)
            if fragment not in self._anchors:
                raise ShapeError(f"Anchor '{fragment}' does not exist", path)
            return self._anchors[fragment]
        value = resource
        for step in fragment.split("/")[1:]:
            members, items = as_object(value), as_list(value)
            key = step.replace("~1", "/").replace("~0", "~")
            if items is not None and not key.isdecimal():
                raise ShapeError(
                    f"Failed to parse array index '{key}' in pointer '{fragment}'", path
                )
            if members is not None and key in members:
                value = members[key]
            elif items is not None and len(key) < _MOST_DIGITS and int(key) < len(items):
                value = items[int(key)]
            else:
                raise ShapeError(f"Pointer '{fragment}' does not exist", path)
        return value


def _joined(home: str, target: str, path: str) -> str:
    try:
        return urljoin(home, target)
    except ValueError as error:
        raise ShapeError(f"Invalid URI reference '{target}': {error}", path) from None


def _anchors(root: Any) -> dict[str, Any]:
    """Every object with an anchor, wherever it is, by its anchor."""
    found: dict[str, Any] = {}
    rest = [root]
    while rest:
        value = rest.pop()
        members = as_object(value)
        for key in ("$anchor", "$dynamicAnchor"):
            name = None if members is None else members.get(key)
            if isinstance(name, str):
                found[name] = members
        rest += (as_list(value) or []) if members is None else list(members.values())
    return found


def complain(value: Any, fault: str, path: str) -> NoReturn:
    """Refuse a value; the error shows it."""
    raise ShapeError(f"{compact(value)} {fault}", path)


def _regex(value: Any, path: str) -> None:
    if not _compiles(value):
        complain(value, 'is not a "regex"', path)


# What Python compiles and ECMA-262 does not: escapes, groups, and braces that are no count.
_FOREIGN = re.compile(r"\\[aZ0]|\(\?[>#]|(?<!\\)\{(?!\d+(,\d*)?\})")
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z_])")
# What ECMA-262 knows and Python does not; it stands for one character.
_ONE_CHARACTER = re.compile(r"\\[pP]\{\w+(=\w+)?\}|\\c[A-Za-z]|\\u\{[0-9a-fA-F]{1,6}\}")


def _compiles(pattern: str) -> bool:
    """Whether an ECMA-262 pattern compiles, as far as Python's dialect can tell."""
    python = _NAMED_GROUP.sub("(?P<", _ONE_CHARACTER.sub(".", pattern))
    if _FOREIGN.search(python):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(python)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
