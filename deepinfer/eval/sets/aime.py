"""AIME: competition problems whose answer is an integer from 0 to 999 (conventions.md 3.5).

Knows nothing of how many samples are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer.errors import ConfigError
from deepinfer.eval.extract import after_thinking, as_integer, last_boxed, last_math
from deepinfer.eval.question import Fields, Question, Reply, Verdict, right, wrong
from deepinfer.eval.rows import Row, column

LARGEST = 999
_INSTRUCTION = (
    "Solve the following problem. Its answer is an integer from 0 to 999. Work step by step, and "
    "write the answer at the end as \\boxed{answer}."
)


def questions(rows: Sequence[Row]) -> list[Question]:
    """One question a row with the columns `problem` and `answer` (a number or its text).

    Raises:
        ConfigError: a column is missing, or an answer is no integer of 0..999.
    """
    return [_question(row, number) for number, row in enumerate(rows)]


def _question(row: Row, number: int) -> Question:
    answer: Any = column(row, number, ("answer", "Answer"))
    target = as_integer(str(answer))
    if target is None or not 0 <= target <= LARGEST:
        raise ConfigError(f"row {number}: answer {answer!r} is no integer of 0..{LARGEST}")
    problem = column(row, number, ("problem", "question", "Problem"))
    key = row.get("problem_idx", row.get("id", number))
    content = f"{_INSTRUCTION}\n\n{problem}"
    return Question(str(key), [{"role": "user", "content": content}], target)


def score(target: Any, facts: Fields, reply: Reply) -> Verdict:
    """Right if the last boxed group, or without one the last formula, is the target.

    Args:
        target: the integer.
        facts: not used.
        reply: what came back.
    """
    del facts
    text = after_thinking(reply.content)
    found = last_boxed(text)
    if found is None:
        found = last_math(text)
    if found is None:
        return wrong("no boxed answer and no formula")
    value = as_integer(found)
    if value is None:
        return wrong("no integer", found)
    return right(str(value)) if value == target else wrong("another number", str(value))
