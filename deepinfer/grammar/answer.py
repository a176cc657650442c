"""Constraints that become one rule, which stands alone or beside the calls of tools.

It does not know what stands beside it.
"""

from __future__ import annotations

from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.json_schema import json_rule
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.regex import choice_rule, regex_rule

ANSWER_KINDS = ("json_schema", "json_object", "regex", "choice")


def answer_rule(constraint: Constraint, limits: Limits) -> str:
    """The right side of a rule for the texts that satisfy a constraint of `ANSWER_KINDS`.

    Raises:
        RequestError: it cannot be read or enforced; with the position and the reason.
    """
    match constraint.kind:
        case "json_schema" | "json_object":
            return json_rule(constraint, limits)
        case "regex":
            return regex_rule(constraint.source, limits)
        case "choice":
            return choice_rule(constraint.source)
        case "ebnf" | "tool_calls" | "structural_tag":
            raise AssertionError(f"{constraint.kind} needs rules of its own")
