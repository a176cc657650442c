"""Humanity's Last Exam: short answers with a stated confidence (conventions.md 3.5).

Rules decide here: equal after tidying, or the same letter. A judge model may decide instead (see
`judge.py`); rules err towards "wrong". Items with an image are counted as skipped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from deepinfer.eval import extract
from deepinfer.eval.question import Fields, Question, Reply, Verdict
from deepinfer.eval.rows import Row, column

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_INSTRUCTION = (
    "Reply with three fields, each on a line of its own:\n"
    "Explanation: why the answer holds\n"
    "{field}: the final answer alone\n"
    "Confidence: how sure you are, from 0% to 100%"
)
_FIELDS = {"exactMatch": "Exact Answer", "multipleChoice": "Answer"}


def questions(rows: Sequence[Row]) -> list[Question]:
    """One question a row.

    Args:
        rows: with the columns `question` and `answer`, and `id`, `image`, `answer_type` and
            `category` if they are there.

    Raises:
        ConfigError: a column is missing or empty.
    """
    return [_question(row, number) for number, row in enumerate(rows)]


def _question(row: Row, number: int) -> Question:
    kind = row.get("answer_type") or "exactMatch"
    asked = str(column(row, number, ("question",)))
    instruction = _INSTRUCTION.format(field=_FIELDS.get(kind, _FIELDS["exactMatch"]))
    facts = {"kind": kind, "question": asked, "group": row.get("category") or "all"}
    return Question(
        str(row.get("id") or number),
        [{"role": "system", "content": instruction}, {"role": "user", "content": asked}],
        str(column(row, number, ("answer",))),
        facts=facts,
        skipped="needs an image" if row.get("image") else None,
    )


def score(target: Any, facts: Fields, reply: Reply) -> Verdict:
    """Right if the answer field equals the target after tidying, or names its letter.

    Args:
        target: the text of the answer.
        facts: `kind` is "multipleChoice" or "exactMatch".
        reply: what came back; a missing confidence counts as 100 %.
    """
    text = extract.after_thinking(reply.content)
    sure = confidence(text)
    if facts["kind"] == "multipleChoice":
        answer = extract.last_letter(text, _LETTERS)
        correct = answer is not None and answer == _target_letter(target)
    else:
        answer = extract.field(text, "Exact Answer", "Answer") or extract.last_boxed(text)
        correct = answer is not None and same_answer(answer, target)
    reason = None if correct else "no answer field" if answer is None else "another answer"
    return Verdict(correct, float(correct), answer, reason, sure)


def confidence(text: str) -> float:
    """The stated confidence as 0..1; 1 if none is stated or it is out of range."""
    stated = extract.field(text, "Confidence")
    number = None if stated is None else re.search(r"\d+(?:\.\d+)?", stated)
    value = 100.0 if number is None else float(number[0])
    return min(value, 100.0) / 100


def same_answer(answer: str, target: str) -> bool:
    """Whether two short answers are equal as numbers or as tidied text."""
    first, second = tidied(answer), tidied(target)
    numbers = extract.as_number(first), extract.as_number(second)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return first == second != ""


def tidied(text: str) -> str:
    """A short answer without case, dollar signs, text commands, outer marks and extra blanks."""
    text = unicodedata.normalize("NFKC", text).casefold()
    boxed = extract.last_boxed(text)
    text = text if boxed is None else boxed
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:left|right)(?![a-z])|\\[,;:! ]|[$`*]", "", text)
    text = re.sub(r"\s+", " ", text).strip(" .\"'")
    return re.sub(r" ?([-+*/^=<>,()]) ?", r"\1", text)


def _target_letter(target: str) -> str:
    return target.strip().strip("().").upper()[:1]
