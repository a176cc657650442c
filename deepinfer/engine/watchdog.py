"""Names the step that takes too long, in the log and for `health`.

It only tells: what a device does cannot be stopped from here. Knows nothing of requests; token ids
and sampling values of a plan are left out, for they belong to users.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from deepinfer.errors import ConfigError
from deepinfer.step import RowSampling, StepPlan

_LOG = logging.getLogger(__name__)
_LOOKS = 4  # looks within the limit


class _Open(NamedTuple):
    """A step that is begun and not ended, and the rows that decode in it."""

    plan: StepPlan
    decoding: int


class Watchdog:
    """Watches the oldest step that is not collected; its thread looks and logs, once a step.

    Args:
        limit: seconds that a step may take, > 0. With a step planned ahead the time of the second
            one counts from the end of the first.
        clock: seconds, monotonic.
        start: run the thread; without it somebody must call `look`.

    Raises:
        ConfigError: `limit` is out of range.
    """

    def __init__(
        self, limit: float, *, clock: Callable[[], float] = time.monotonic, start: bool = True
    ):
        if not limit > 0:
            raise ConfigError(f"step_timeout_s {limit!r}: use seconds > 0, or None for no limit")
        self.limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._since = 0.0  # when the oldest open step became the oldest
        self._decoding = 0
        self._named = -1  # number of the step that was logged last
        self._closed = threading.Event()
        if start:
            threading.Thread(target=self._run, name="deepinfer-watchdog", daemon=True).start()

    def begin(self, plan: StepPlan) -> None:
        """A step is handed to the runner."""
        with self._lock:
            self._decoding += len(plan.decode_add) - len(plan.decode_remove)
            if not self._open:
                self._since = self._clock()
            self._open[plan.number] = _Open(plan, self._decoding)

    def end(self, number: int) -> None:
        """A step was collected."""
        with self._lock:
            del self._open[number]
            self._since = self._clock()

    def current(self) -> str | None:
        """What the oldest uncollected step computes and for how long it does; None without one."""
        with self._lock:
            if not self._open:
                return None
            step = next(iter(self._open.values()))
            return f"{describe(step.plan, step.decoding)}, for {self._clock() - self._since:.1f} s"

    def stuck(self) -> str | None:
        """`current` if that step takes longer than the limit, else None."""
        with self._lock:
            if not self._open or self._clock() - self._since <= self.limit:
                return None
        return self.current()

    def look(self) -> None:
        """Log a step that takes too long, with its plan, unless that was done."""
        sentence = self.stuck()
        if sentence is None:
            return
        with self._lock:
            step = next(iter(self._open.values()), None)
            if step is None or step.plan.number == self._named:
                return
            self._named = step.plan.number
        _LOG.error(
            "%s; the limit is %g s; plan %s", sentence, self.limit, anonymous(step.plan).to_json()
        )

    def close(self) -> None:
        """End the thread; from now on no step is open."""
        self._closed.set()
        with self._lock:
            self._open.clear()

    def _run(self) -> None:
        while not self._closed.wait(self.limit / _LOOKS):
            self.look()


def anonymous(plan: StepPlan) -> StepPlan:
    """A plan without token ids and sampling values."""
    admit = tuple(
        item._replace(ids=(), stop_ids=(), seed=0, sampling=RowSampling()) for item in plan.admit
    )
    return replace(plan, admit=admit)


def describe(plan: StepPlan, decoding: int) -> str:
    """One line: number, rows and tokens of a step.

    Args:
        plan: of the step.
        decoding: rows that decode in it, which a plan tells only by its changes.
    """
    slices, drafts = len(plan.prefill), plan.draft_budget
    tokens = sum(piece.length for piece in plan.prefill)
    return (
        f"step {plan.number} computes {tokens} prompt tokens in {slices} slices, {decoding} "
        f"decoding rows and up to {drafts} drafts, {tokens + decoding + drafts} tokens in all"
    )
