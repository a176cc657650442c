"""Masks of a step: what is late, what failed, and what an older computation is still good for."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from deepinfer.engine.masks import Asked, Masks
from deepinfer.errors import RequestError


class Panic(BaseException):
    """What a library in another language raises when it gives up."""


class Held:
    """Computes when it is let go; every draft below 50 is legal."""

    def __init__(self, fault: BaseException | None = None, free: bool = False):
        self.gate, self.fault, self.free = threading.Event(), fault, free
        self.asked: list[tuple[int, ...]] = []

    def accept(self, ids: Sequence[int]) -> int:
        if self.fault is not None:
            raise self.fault
        return sum(id < 50 for id in ids)

    def fill_masks(self, drafts: Sequence[int], rows: np.ndarray) -> int:
        self.gate.wait(10)
        self.asked.append(tuple(drafts))
        if self.fault is not None:
            raise self.fault
        rows[:] = np.arange(len(rows))[:, None]
        return next((i for i, id in enumerate(drafts) if id >= 50), len(drafts))

    def is_free_after(self, drafts: Sequence[int]) -> bool:
        return self.free


def masks(patience: float = 10.0, **matchers: Held) -> Masks:
    made = Masks(3, patience)
    for name, matcher in matchers.items():
        made.add(name, matcher, 2)
    return made


def wait_for(made: Masks, asked: dict[int, Asked]):
    """The first step in which nothing is late."""
    for _ in range(1000):
        step, failed = made.step(asked)
        if not step.late:
            return step, failed
        threading.Event().wait(0.01)
    raise AssertionError("always late")


def test_rows_of_ended_requests_and_of_free_texts_need_no_mask():
    one, two = Held(), Held(free=True)
    one.gate.set()
    made = masks(a=one, b=two)
    step, failed = made.step({1: Asked("gone", ()), 4: Asked("a", (7, 60, 8)), 6: Asked("b", ())})
    assert (step.row.tolist(), step.free, step.late, failed) == ([4], (1, 6), (), {})
    assert step.legal.tolist() == [1]
    assert step.words.shape == (1, 4, 2)
    assert step.words[0, :, 0].tolist() == [0, 1, 2, 3]
    assert step.covers((1, 4, 6))
    assert not step.covers((1, 4))
    made.close()


@pytest.mark.parametrize(
    ("before", "now", "legal"),
    [((7, 8, 9), (7, 8, 9), 3), ((7, 8, 9), (7, 5), 1), ((7,), (8, 9), 0), ((7, 70), (7, 70), 1)],
)
def test_a_late_mask_is_used_as_far_as_the_drafts_are_still_the_same(before, now, legal):
    matcher = Held()
    made = masks(0.0, a=matcher)
    step, _ = made.step({2: Asked("a", before)})
    assert (step.late, step.row.tolist()) == ((2,), [])
    assert step.any
    matcher.gate.set()
    step, _ = wait_for(made, {2: Asked("a", now)})
    assert step.legal.tolist() == [legal]
    assert matcher.asked == [before]
    assert made.late >= 1
    made.close()


def test_a_fault_of_one_matcher_is_the_error_of_its_request_only():
    good, bad = Held(), Held(Panic("out of range"))
    good.gate.set()
    bad.gate.set()
    made = masks(a=good, b=bad)
    step, failed = made.step({1: Asked("a", ()), 2: Asked("b", ())})
    assert (step.row.tolist(), step.free) == ([1], (2,))
    assert failed == {"b": "out of range"}
    made.close()


def test_a_token_that_is_not_legal_is_named():
    made = masks(a=Held(), b=Held(RequestError("too much work")))
    assert made.accept("a", [3, 4]) == ""
    assert "token 51" in made.accept("a", [51])
    assert made.accept("b", [3]) == "too much work"
    assert made.accept("unknown", [99]) == ""
    made.forget("a")
    assert made.accept("a", [51]) == ""
