"""The run: steps until its time is over, a log, states to go on from, held-out measurements.

It does not know where batches come from or what becomes of the weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepinfer.device import Device
from deepinfer.nano.data.pack import Batch
from deepinfer.nano.train.calibrate import temperatures
from deepinfer.nano.train.schedule import LENGTHS, factor, length_of, phase
from deepinfer.nano.train.step import Report, Trainer

STATE = "state.pt"
LOG = "log.jsonl"
_LOG_EVERY = 20  # steps
HELD_OUT = 1 << 41  # added to the seed of batches that are never trained on
_HALF = 0.5
_MEASURED = 2  # held-out batches of each length


@dataclass(frozen=True)
class Plan:
    """What a run is.

    Attributes:
        seed: of masters, batches and draws.
        seconds: of training, over all commands of the run.
        tokens: of a step.
        source: (seed, rows, length, first, workers) -> batches, see `nano.data.batches`.
        workers: processes that make batches of one length.
        kinds: names of the kinds of text.
        out: directory for state and log.
    """

    seed: int
    seconds: float
    tokens: int
    source: Callable[[int, int, int, int, int], Iterator[Batch]]
    workers: int
    kinds: Sequence[str]
    out: Path


@dataclass
class Loop:
    """A run that can be left and taken up again."""

    plan: Plan
    trainer: Trainer
    device: Device
    step: int = 0
    elapsed: float = 0.0
    drawn: dict[int, int] = field(default_factory=dict[int, int])
    _reached: float = 0.0
    _streams: dict[int, Iterator[Batch]] = field(default_factory=dict[int, Iterator[Batch]])

    def rehearse(self) -> None:
        """Compile for every length, before time counts."""
        for length in LENGTHS:
            rows = self.trainer.rows(self._batch(length), np.random.default_rng(0))
            self.trainer.rehearse(rows, sparse=True)
            self.trainer.rehearse(rows, sparse=False)
        self.device.synchronize()

    def run(self, seconds: float | None, halfway: Callable[[], None]) -> bool:
        """Train; returns whether the run is over.

        Args:
            seconds: of this command at most, None = to the end of the run.
            halfway: called once when half of the run has passed.
        """
        begun, before, marks = time.perf_counter(), self.elapsed, (0, time.perf_counter())
        stop = self.plan.seconds if seconds is None else min(self.plan.seconds, before + seconds)
        while self.elapsed < stop:
            progress = self.elapsed / self.plan.seconds
            if progress >= _HALF > self._reached:
                halfway()
            self._reached = progress
            length = length_of(self.step, progress)
            report = self._step(length)
            self.step += 1
            if self.step % _LOG_EVERY == 0:
                self.device.synchronize()
                now = time.perf_counter()
                rate = (self.step - marks[0]) * self.plan.tokens / (now - marks[1])
                self._log("train", length, report, tokens_per_second=round(rate) if marks[0] else 0)
                marks = (self.step, now)
            self.elapsed = before + time.perf_counter() - begun
        self.device.synchronize()
        return self.elapsed >= self.plan.seconds

    def _step(self, length: int) -> Report:
        progress = self.elapsed / self.plan.seconds
        random = np.random.default_rng((self.plan.seed, self.step))
        rows = self.trainer.rows(self._batch(length), random)
        return self.trainer.train(
            rows,
            sparse=phase(progress).sparse,
            offset=int(random.integers(self.trainer.drafter.stride)),
            factor=factor(self.step, progress),
        )

    def _batch(self, length: int) -> Batch:
        if length not in self._streams:
            first = self.drawn.get(length, 0)
            plan, rows = self.plan, self.plan.tokens // length
            self._streams[length] = plan.source(plan.seed, rows, length, first, plan.workers)
        self.drawn[length] = self.drawn.get(length, 0) + 1
        return next(self._streams[length])

    def close(self) -> None:
        """End what makes batches."""
        for stream in self._streams.values():
            close = getattr(stream, "close", None)
            if close is not None:
                close()
        self._streams.clear()

    def held_out(self, length: int) -> list[Batch]:
        """Batches that are never trained on."""
        seed, rows = self.plan.seed + HELD_OUT, self.plan.tokens // length
        stream = self.plan.source(seed, rows, length, 0, 0)
        return [next(stream) for _ in range(_MEASURED)]

    def measure(self, length: int) -> None:
        """Log accuracies on held-out batches."""
        for batch in self.held_out(length):
            rows = self.trainer.rows(batch, np.random.default_rng(0))
            self._log("held_out", length, self.trainer.measure(rows))

    def calibrate(self, length: int) -> list[float]:
        """Temperatures of the confidences from held-out batches."""
        parts = [
            [t.float().cpu().numpy() for t in self.trainer.confidences(rows)]
            for rows in (
                self.trainer.rows(batch, np.random.default_rng(0))
                for batch in self.held_out(length)
            )
        ]
        says, right, counted = (np.concatenate(kind) for kind in zip(*parts, strict=True))
        return temperatures(says, right > 0, counted > 0)

    def save(self) -> None:
        """Write the state, whole or not at all."""
        path = self.plan.out / STATE
        state = {
            "step": self.step,
            "elapsed": self.elapsed,
            "reached": self._reached,
            "drawn": self.drawn,
            "bank": self.trainer.bank.state(),
            "optimiser": self.trainer.optimiser.state(),
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)

    def load(self, directory: Path) -> None:
        """Take up a saved state."""
        state: dict[str, Any] = torch.load(directory / STATE, map_location=self.device.torch)
        self.step, self.elapsed = int(state["step"]), float(state["elapsed"])
        self._reached = float(state["reached"])
        self.drawn = dict(state["drawn"])
        self.trainer.bank.load(state["bank"])
        self.trainer.optimiser.load(state["optimiser"])

    def _log(self, what: str, length: int, report: Report, **more: object) -> None:
        right, spoken = report.right.tolist()
        line = {
            "what": what,
            "step": self.step,
            "minutes": round(self.elapsed / 60, 2),
            "length": length,
            "loss": _short(report.loss),
            "index": _short(report.index),
            "draft": _short(report.draft),
            "accepted": [round(x, 3) for x in report.accepted.tolist()],
            "doubt": _short(report.doubt),
            "norm": _short(report.norm),
            "crowd": _short(report.crowd),
            "right": {
                name: round(right[i] / spoken[i], 4)
                for i, name in enumerate(self.plan.kinds)
                if spoken[i]
            },
            "gib": round(self.device.memory_held() / 2**30, 1),
            **more,
        }
        text = json.dumps(line)
        print(text, flush=True)
        with (self.plan.out / LOG).open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def _short(value: torch.Tensor) -> float:
    return round(float(value), 4)
