"""What a caller may ask of the generated text, parsed from its spellings into one plain record.

It does not know tokens, nor whether the source can be compiled: `front.py` finds out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, cast

from deepinfer.errors import RequestError
from deepinfer.request import StructuredOutputsParams

Kind = Literal[
    "json_schema", "json_object", "regex", "ebnf", "choice", "tool_calls", "structural_tag"
]


@dataclass(frozen=True)
class Constraint:
    """One demand on the text.

    Attributes:
        kind: how `source` is read.
        source: a JSON Schema, a regex, an EBNF grammar, a JSON list of strings, or the JSON that
            `tool_calls.py` or `structural_tag.py` make; empty for "json_object".
        any_whitespace: JSON may hold (bounded) white space between its tokens.
        whitespace_pattern: regex of that white space; None = the bounded default.
        open_objects: objects whose schema does not say so may have further properties.
    """

    kind: Kind
    source: str
    any_whitespace: bool = True
    whitespace_pattern: str | None = None
    open_objects: bool = True

    @property
    def key(self) -> str:
        """A name that equal constraints share: SHA-256 of all fields, in hexadecimal."""
        fields = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(fields.encode("ascii")).hexdigest()


def constraint_of(params: StructuredOutputsParams) -> Constraint:
    """The demand of `params` as a plain record.

    Raises:
        RequestError: a value has the wrong type or is no JSON.
    """
    if params.regex is not None:
        return Constraint("regex", _text("regex", params.regex))
    if params.grammar is not None:
        return Constraint("ebnf", _text("grammar", params.grammar))
    if params.choice is not None:
        return Constraint("choice", _choice(params.choice))
    if params.structural_tag is not None:
        return Constraint("structural_tag", _json("structural_tag", params.structural_tag))
    pattern = params.whitespace_pattern
    return Constraint(
        "json_object" if params.json is None else "json_schema",
        "" if params.json is None else _json("json", params.json),
        any_whitespace=not params.disable_any_whitespace,
        whitespace_pattern=None if pattern is None else _text("whitespace_pattern", pattern),
        open_objects=not params.disable_additional_properties,
    )


_SCHEMA_TYPES: Mapping[str, Kind] = {"json": "json_schema", "regex": "regex", "ebnf": "ebnf"}


@dataclass(frozen=True)
class SoArgs:
    """`so_args` of the original engine: a constraint and the tokens after which it starts."""

    constraint: Constraint
    trigger_token_ids: tuple[int, ...]
    bound_token_id: int | None


def parse_so_args(args: Mapping[str, object]) -> SoArgs:
    """Read `so_args` (original-surface.md 6).

    Args:
        args: `schema_type` ("json", "regex" or "ebnf"), `schema` (text), and optionally
            `trigger_token_ids` (list of ids) and `bound_token_id` (an id).

    Raises:
        RequestError: a key is missing, unknown or of another type.
    """
    known = {"schema_type", "schema", "trigger_token_ids", "bound_token_id"}
    if unknown := sorted(set(args) - known):
        raise RequestError(f"so_args {unknown}: known keys are {sorted(known)}")
    schema_type = args.get("schema_type")
    if not isinstance(schema_type, str) or schema_type not in _SCHEMA_TYPES:
        raise RequestError(f"schema_type {schema_type!r}: use one of {list(_SCHEMA_TYPES)}")
    triggers: object = args.get("trigger_token_ids")
    ids: list[object] = []
    if isinstance(triggers, (list, tuple)):
        ids = list(cast("Sequence[object]", triggers))
    elif triggers is not None:
        raise RequestError(f"trigger_token_ids {triggers!r}: use a list of token ids")
    bound = args.get("bound_token_id")
    if bound is not None and not ids:
        raise RequestError("bound_token_id without trigger_token_ids has nothing to force")
    return SoArgs(
        Constraint(_SCHEMA_TYPES[schema_type], _text("schema", args.get("schema"))),
        tuple(_token("trigger_token_ids entry", id) for id in ids),
        None if bound is None else _token("bound_token_id", bound),
    )


def _token(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(f"{name} {value!r}: use a token id, an integer >= 0")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} {value!r}: use text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} holds a lone surrogate at position {error.start}; send valid Unicode"
        ) from None
    return value


def _choice(values: object) -> str:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(f"choice {values!r}: use a list of strings")
    listed = [_text("choice entry", value) for value in cast("Sequence[object]", values)]
    if not listed:
        raise RequestError("choice is empty: give at least one string")
    return json.dumps(listed, ensure_ascii=False)


def _json(name: str, value: object) -> str:
    """JSON text of a value that may be text already; a schema may be a truth value, too."""
    if isinstance(value, str):
        return _text(name, value)
    if not isinstance(value, Mapping) and not (name == "json" and isinstance(value, bool)):
        raise RequestError(f"{name} {value!r}: use JSON, as text or as an object")
    try:
        # Not sorted: the properties of an object are generated in the order of the schema.
        return _text(name, json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{name} is no JSON: {error}") from None
