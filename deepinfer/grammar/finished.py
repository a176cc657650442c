"""Does a finished text satisfy its constraint, in the opinion of somebody else?

Runs in a worker process, because a pattern of the caller's choice is matched here by backtracking.
It does not know how the text was made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any, cast

from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.tool_calls import DSML, OPENING

_DIGITS = 1_000


def check_finished(constraint: Constraint, text: str) -> str:
    """Judge a finished text by means other than the matching library.

    Numbers are compared as decimals and patterns with ASCII classes, as ECMA-262 does. Without the
    package `jsonschema` a text for "json_schema" is only parsed. Numbers that are too large to be
    compared are not judged.

    Args:
        constraint: of any kind; texts of kinds that nobody else can judge pass.
        text: the whole text.

    Returns:
        What is wrong with it; empty if nothing is.
    """
    if constraint.kind == "choice":
        return "" if text in json.loads(constraint.source) else "the text is none of the choices"
    if constraint.kind == "tool_calls":
        answer = json.loads(constraint.source)["answer"]
        if answer is None or text.startswith(f"{OPENING}{DSML}"):
            return ""
        return check_finished(Constraint(**answer), text)
    if constraint.kind not in ("json_object", "json_schema"):
        return ""
    try:
        value = json.loads(text, parse_float=Decimal)
    except InvalidOperation:  # an exponent that has no end
        return ""
    except ValueError as error:
        return f"the text is no JSON: {error}"
    if constraint.kind == "json_object":
        return "" if isinstance(value, dict) else "the text is no JSON object"
    try:
        with localcontext(prec=_DIGITS):
            return _check_schema(json.loads(constraint.source, parse_float=Decimal), value)
    except (InvalidOperation, OverflowError):
        return ""


def _check_schema(schema: object, value: object) -> str:
    try:
        import jsonschema
        from jsonschema import validators
    except ImportError:
        return ""

    def pattern(_: object, wanted: str, instance: object, __: object) -> Iterator[Exception]:
        if isinstance(instance, str) and not re.search(wanted, instance, re.ASCII):
            yield jsonschema.ValidationError(f"{instance!r} does not match {wanted!r}")

    library = cast(Any, validators)  # its types are partly unknown
    base = library.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = library.extend(base, {"pattern": pattern})(
        schema, format_checker=base.FORMAT_CHECKER
    )
    error = next(iter(validator.iter_errors(value)), None)
    if error is None:
        return ""
    where = "/".join(map(str, error.absolute_path))
    return f"at /{where}: {error.message}"
