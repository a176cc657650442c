"""The table of question sets: how each is made, scored and asked by default.

Knows nothing of back-ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError
from deepinfer.eval.question import Fields, Question, Reply, Settings, Verdict
from deepinfer.eval.rows import read_rows
from deepinfer.eval.sets import aime, arith, gpqa, hle, invoice, needle, tools

Scorer = Callable[[Any, Fields, Reply], Verdict]


@dataclass(frozen=True)
class Wish:
    """What questions are wanted.

    Attributes:
        data: file or directory of a public set, None for an own one.
        limit: most problems; None: all of a public set, 200 of an own one.
        samples: samples a problem.
        seed: of option orders and of own sets.
        contexts: estimated tokens of the contexts of `needle`.
        bytes_per_token: of that estimate.
    """

    data: Path | None
    limit: int | None
    samples: int
    seed: int
    contexts: Sequence[int] = (1000, 4000)
    bytes_per_token: float = needle.BYTES_PER_TOKEN


@dataclass(frozen=True)
class Task:
    """A question set.

    Attributes:
        name: on the command line and in sample files.
        what: in a few words.
        public: made from rows of a file that the user has; else from a seed.
        make: its questions, each with sample 0, or with all samples if `orders`.
        score: the verdict on a reply to (target, facts).
        settings: how it is asked unless told otherwise.
        samples: samples a problem unless told otherwise.
        orders: samples of one problem differ in what is asked.
    """

    name: str
    what: str
    public: bool
    make: Callable[[Wish], list[Question]]
    score: Scorer
    settings: Settings
    samples: int = 1
    orders: bool = False

    def questions(self, wish: Wish) -> list[Question]:
        """Every question of the run: all samples of all problems, skipped ones once.

        Raises:
            ConfigError: data are missing, not wanted or unusable, or two problems share a key.
        """
        if self.public and wish.data is None:
            raise ConfigError(f"{self.name}: give the file or directory of its data with --data")
        if not self.public and wish.data is not None:
            raise ConfigError(f"{self.name} is made from a seed; leave --data out")
        for name, value in (("limit", wish.limit), ("samples", wish.samples)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: use 1 or more")
        made = self.make(wish)
        if not self.orders:
            made = [
                replace(question, sample=sample)
                for question in made
                for sample in range(1 if question.skipped else wish.samples)
            ]
        places = [question.place for question in made]
        if len(set(places)) != len(places):
            twice = next(place[0] for place in places if places.count(place) > 1)
            raise ConfigError(f"{self.name}: two problems have the key {twice!r}")
        return made

    def verdict(self, target: Any, facts: Fields, reply: Reply) -> Verdict:
        """`score`, but an error is wrong whatever came with it."""
        if reply.error is not None:
            return Verdict(correct=False, share=0.0, reason=f"error: {reply.error}")
        return self.score(target, facts, reply)


_OWN = 200  # problems of an own set, unless told otherwise
_REASONED = Settings(max_tokens=32_768, temperature=1.0, top_p=0.95, thinking=True)


def _rows(wish: Wish) -> list[dict[str, Any]]:
    assert wish.data is not None
    return read_rows(wish.data)[: wish.limit]


def _own(wish: Wish) -> int:
    return wish.limit or _OWN


_TASKS = (
    Task(
        "aime2026", "30 competition problems with integer answers", True,
        lambda wish: aime.questions(_rows(wish)), aime.score, _REASONED, samples=32,
    ),
    Task(
        "gpqa-diamond", "198 graduate-level questions with four options", True,
        lambda wish: gpqa.questions(_rows(wish), wish.seed, wish.samples), gpqa.score, _REASONED,
        samples=4, orders=True,
    ),
    Task(
        "hle", "2,500 expert questions with short answers", True,
        lambda wish: hle.questions(_rows(wish)), hle.score, _REASONED,
    ),
    Task(
        "invoice", "invoices and receipts to JSON", False,
        lambda wish: invoice.questions(_own(wish), wish.seed), invoice.score,
        Settings(512, thinking=False),
    ),
    Task(
        "arith", "arithmetic of two and three digits, word problems", False,
        lambda wish: arith.questions(_own(wish), wish.seed), arith.score,
        Settings(512, thinking=True),
    ),
    Task(
        "tools", "function calls and answers from their results", False,
        lambda wish: tools.questions(_own(wish), wish.seed), tools.score,
        Settings(256, thinking=False),
    ),
    Task(
        "needle", "look-ups in long contexts", False,
        lambda wish: needle.questions(
            _own(wish), wish.seed, wish.contexts, wish.bytes_per_token
        ),
        needle.score, Settings(64, thinking=False),
    ),
)  # fmt: skip
TASKS = {task.name: task for task in _TASKS}
"""All question sets by name."""
