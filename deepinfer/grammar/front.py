"""From a constraint to a grammar of the matching library: one front end for each kind.

Runs in a worker process, because input of a caller's choice is read here. It does not know masks.
"""

from __future__ import annotations

from deepinfer.errors import RequestError
from deepinfer.grammar.answer import answer_rule
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.ebnf import translate_ebnf
from deepinfer.grammar.library import grammar_of
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.structural_tag import translate_structural_tag
from deepinfer.grammar.tool_calls import translate_tool_calls
from deepinfer.grammar.vocabulary import Vocabulary


def translate(constraint: Constraint, vocabulary: Vocabulary, limits: Limits) -> str:
    """The library's grammar of the texts that satisfy `constraint`.

    Raises:
        RequestError: it cannot be read or enforced; with the position and the reason.
    """
    check_size(constraint, limits)
    match constraint.kind:
        case "ebnf":
            return translate_ebnf(constraint.source, limits)
        case "tool_calls":
            return translate_tool_calls(constraint.source, vocabulary, limits)
        case "structural_tag":
            return translate_structural_tag(constraint.source, vocabulary, limits)
        case _:
            return grammar_of(f"start: {answer_rule(constraint, limits)}")


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
