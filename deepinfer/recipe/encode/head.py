"""Texts that only the head of a prompt holds: reasoning effort and form of the answer.

It does not know where in the head they stand.
"""

from __future__ import annotations

from deepinfer.recipe.conversation import Conversation
from deepinfer.recipe.json_text import spaced, spaced_short

# What the models were trained with (recipe.md, Appendix A); every byte counts.
_BUDGETS = {"low": 50, "high": 75, "xhigh": 75, "max": 100}
_HIGH = """\
Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve \
the root cause, rigorously stress-testing your logic against all potential paths, edge cases, \
and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left \
unchecked.

"""
_MAX = """\
Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: \
exhaustively decompose the problem into its most fundamental components, trace every causal chain \
to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles \
and are certain that no assumption remains unchecked and no error remains undiscovered.

"""
_TEXTS = {"low": "", "high": _HIGH, "xhigh": _HIGH, "max": _MAX}
_SCHEMA = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
_JSON_V4 = (
    "You are a helpful assistant designed to output JSON.\n"
    "## Response Format:\n\nReply with JSON object ONLY."
)


def effort_v41(conversation: Conversation) -> str:
    """How much to think, as a number; empty outside thinking mode."""
    if not conversation.thinking_mode:
        return ""
    effort = conversation.reasoning_effort or "high"
    budget = effort if isinstance(effort, int) else _BUDGETS[effort]
    return (
        f"Reasoning Effort: {budget} (range 1-100, the higher the value, the more thorough the "
        "reasoning)\n\n"
    )


def effort_v4(conversation: Conversation) -> str:
    """How much to think, in words; empty outside thinking mode.

    Raises:
        ValueError: the effort is a number, which V4 was not trained with.
    """
    if not conversation.thinking_mode:
        return ""
    effort = conversation.reasoning_effort or "high"
    if isinstance(effort, int):
        raise ValueError(
            f"V4 has no numeric reasoning_effort such as {effort}; use one of {sorted(_TEXTS)}"
        )
    return _TEXTS[effort]


def answer_form_v41(conversation: Conversation) -> str:
    """What the model is told about the form of its answer; empty if nothing."""
    match conversation.response_format:
        case "json_object":
            return _SCHEMA + spaced({"type": "json_object"})
        case "json_schema":
            return _SCHEMA + spaced(conversation.response_schema)
        case _:
            return ""


def answer_form_v4(conversation: Conversation) -> str:
    """The same for V4."""
    match conversation.response_format:
        case "json_object":
            return _JSON_V4
        case "json_schema":
            return _SCHEMA + spaced_short(conversation.response_schema)
        case _:
            return ""
