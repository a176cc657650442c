"""From a constraint to a grammar of the matching library: one front end for each kind.

Runs in a worker process, because input of a caller's choice is read here. It does not know masks.
"""

from __future__ import annotations

from deepinfer.errors import RequestError
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.ebnf import translate_ebnf
from deepinfer.grammar.json_schema import translate_schema
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.regex import translate_choice, translate_regex
from deepinfer.grammar.tool_calls import translate_tool_calls
from deepinfer.grammar.vocabulary import Vocabulary


def translate(constraint: Constraint, vocabulary: Vocabulary, limits: Limits) -> str:
    """The library's grammar of the texts that satisfy `constraint`.

    Raises:
        RequestError: it cannot be read or enforced; with the position and the reason.
    """
    check_size(constraint, limits)
    match constraint.kind:
        case "json_schema" | "json_object":
            return translate_schema(constraint, limits)
        case "regex":
            return translate_regex(constraint.source, limits)
        case "ebnf":
            return translate_ebnf(constraint.source, limits)
        case "choice":
            return translate_choice(constraint.source)
        case "tool_calls":
            return translate_tool_calls(constraint.source, vocabulary, limits)


def check_size(constraint: Constraint, limits: Limits) -> None:
    """Refuse what is too large to be looked at.

    Raises:
        RequestError: with the size.
    """
    for text in (constraint.source, constraint.whitespace_pattern or ""):
        size = len(text.encode("utf-8"))
        if size > limits.source_bytes:
            raise RequestError(
                f"{constraint.kind} of {size} bytes; at most {limits.source_bytes} are compiled"
            )
