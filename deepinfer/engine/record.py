"""Traces and statistics of a running engine as JSON lines, and replaying a trace.

Knows nothing of requests: it sees plans, results and counters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from deepinfer.engine.core import Runner
from deepinfer.errors import ConfigError
from deepinfer.scheduler import Snapshot
from deepinfer.step import StepPlan, StepResult

_ARRAYS = ("row", "verified", "accepted", "tokens", "flags")


def result_digest(result: StepResult) -> str:
    """A digest of what a step generated; times and confidences left out."""
    digest = hashlib.sha256()
    for name in _ARRAYS:
        array = np.ascontiguousarray(getattr(result, name), dtype=np.int32)
        digest.update(str(array.shape).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


class FileRecorder:
    """Writes a trace (plans and digests of results) and step statistics.

    Args:
        trace: file of `{"plan": ...}` and `{"number", "digest"}` lines, or None.
        statistics: file of one record a step, or None.

    Raises:
        ConfigError: a file cannot be written.
    """

    def __init__(self, trace: Path | None, statistics: Path | None):
        self._trace = _open(trace)
        self._statistics = _open(statistics)
        self._plans: dict[int, StepPlan] = {}

    def plan(self, plan: StepPlan) -> None:
        """Write a plan."""
        self._plans[plan.number] = plan
        if self._trace is not None:
            self._trace.write(f'{{"plan": {plan.to_json()}}}\n')

    def result(self, result: StepResult, counters: Snapshot) -> None:
        """Write what came of it."""
        plan = self._plans.pop(result.number)
        if self._trace is not None:
            line = {"number": result.number, "digest": result_digest(result)}
            self._trace.write(json.dumps(line) + "\n")
            self._trace.flush()
        if self._statistics is not None:
            record = {
                "step": result.number,
                "seconds": round(result.seconds, 6),
                "prefill_tokens": sum(item.length for item in plan.prefill),
                "drafts_verified": int(result.verified.sum()),
                "drafts_accepted": int(result.accepted.sum()),
                "rows": len(result.row),
                "generated_now": int(result.generated.sum()),
                **counters._asdict(),
            }
            self._statistics.write(json.dumps(record) + "\n")
            self._statistics.flush()

    def close(self) -> None:
        """Close the files."""
        for file in (self._trace, self._statistics):
            if file is not None:
                file.close()


def _open(path: Path | None) -> TextIO | None:
    if path is None:
        return None
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error


class Difference(NamedTuple):
    """A step whose result is not the recorded one."""

    number: int
    recorded: str
    found: str


def read_trace(path: Path) -> tuple[list[StepPlan], dict[int, str]]:
    """Plans in order, and digests of results by step number.

    Raises:
        ConfigError: the file cannot be read as a trace.
    """
    plans: list[StepPlan] = []
    digests: dict[int, str] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            data = json.loads(line)
            if "plan" in data:
                plans.append(StepPlan.from_json(json.dumps(data["plan"])))
            else:
                digests[data["number"]] = data["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a trace: {error}") from error
    return plans, digests


def replay(
    plans: list[StepPlan], digests: dict[int, str], runner: Runner
) -> Iterator[Difference | None]:
    """Run recorded plans on a fresh runner; yields one entry a step, None if equal.

    A step without a recorded result (the run was cut off) counts as equal.
    """
    for plan in plans:
        runner.forward(plan)
        runner.sample(plan.number)
        runner.draft(plan.number)
        found = result_digest(runner.collect(plan.number))
        recorded = digests.get(plan.number, found)
        yield None if found == recorded else Difference(plan.number, recorded, found)
