"""GPQA Diamond: questions with one right option of four (conventions.md 3.5).

The order of the options is drawn from the seed, the problem and the sample, and is stored, so that
scoring needs no draw. Knows nothing of the subject of a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer.eval.draw import Draw
from deepinfer.eval.extract import after_thinking, last_letter
from deepinfer.eval.question import Fields, Question, Reply, Verdict, right, wrong
from deepinfer.eval.rows import Row, column

LETTERS = "ABCD"
_OPTIONS = ("Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))
_INSTRUCTION = (
    "Choose the right one of the four options. Think first, and end with a line of its own that "
    'reads "Answer: X", where X is the letter of your choice.'
)


def questions(rows: Sequence[Row], seed: int, samples: int) -> list[Question]:
    """`samples` questions a row, each with options in an order of its own.

    Args:
        rows: with the columns `Question`, `Correct Answer` and `Incorrect Answer 1` to `3`.
        seed: of the orders.
        samples: samples a problem.

    Raises:
        ConfigError: a column is missing.
    """
    return [
        _question(row, number, seed, sample)
        for number, row in enumerate(rows)
        for sample in range(samples)
    ]


def _question(row: Row, number: int, seed: int, sample: int) -> Question:
    key = str(row.get("Record ID") or number)
    texts = [str(column(row, number, (name,))).strip() for name in _OPTIONS]
    order = Draw("gpqa", seed, key, sample).several(range(len(texts)), len(texts))
    options = "\n".join(
        f"{letter}) {texts[place]}" for letter, place in zip(LETTERS, order, strict=True)
    )
    asked = str(column(row, number, ("Question",))).strip()
    content = f"{_INSTRUCTION}\n\n{asked}\n\n{options}"
    facts = {"order": order}
    if domain := row.get("High-level domain"):
        facts["group"] = domain
    return Question(
        key, [{"role": "user", "content": content}], LETTERS[order.index(0)], sample, facts=facts
    )


def score(target: Any, facts: Fields, reply: Reply) -> Verdict:
    """Right if the option that the answer names last is the target's letter.

    Args:
        target: the letter.
        facts: not used.
        reply: what came back.
    """
    del facts
    letter = last_letter(after_thinking(reply.content), LETTERS)
    if letter is None:
        return wrong("no option named")
    return right(letter) if letter == target else wrong("another option", letter)
