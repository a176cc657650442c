"""Forms of the answer: plain text, a JSON object, JSON by a schema, text by a pattern.

It does not know where protocols keep the wish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deepinfer.recipe.conversation import Message, ResponseFormat
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.json_schema import check_json_schema
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.options import OutputConstraint
from deepinfer.recipe.shapes import ShapeError
from deepinfer.recipe.strict_schema import StrictFault, closed


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """A wish for a form of the answer; `path` is the place of its schema."""

    kind: ResponseFormat
    schema: Any = None
    strict: bool | None = None
    regex: str | None = None
    path: str = ""


TEXT = AnswerFormat("text")


def answer_constraint(wish: AnswerFormat) -> OutputConstraint | None:
    """What the answer must match, with its schema closed if that is said to be strict.

    Raises:
        ConversionError: the schema is none, or not strict though it should be.
    """
    if wish.kind == "json_schema":
        return OutputConstraint("json", compact(_schema(wish)))
    if wish.kind == "json_object":
        return OutputConstraint("json", "")
    return None if wish.regex is None else OutputConstraint("regex", wish.regex)


def _schema(wish: AnswerFormat) -> Any:
    try:
        if wish.strict:
            return closed(wish.schema, wish.path, "json", empty_allowed=False)
        check_json_schema(wish.schema, wish.path)
    except ShapeError as error:
        raise ConversionError(f"Invalid json schema: {error}", error.path) from None
    except StrictFault as fault:
        raise ConversionError(str(fault), fault.path) from None
    return wish.schema


def says_json(messages: Iterable[Message]) -> bool:
    """Whether some message contains the word "json", which `json_object` requires."""
    return any("json" in message.content.lower() for message in messages)
