"""The figures of a run as lines for people and as one JSON object.

Knows nothing of how they are computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from deepinfer.eval.question import Fields
from deepinfer.eval.summary import Score, Summary


def as_json(settings: Fields, summary: Summary) -> dict[str, Any]:
    """One JSON object: what was asked, and the figures."""
    return {"settings": dict(settings), **dataclasses.asdict(summary)}


def lines(settings: Fields, summary: Summary) -> Iterator[str]:
    """The figures as text; what is not known is left out."""
    score, use = summary.score, summary.use
    yield f"{settings['task']} with {settings['model']}"
    yield f"pass@1            {_rate(score)}  ({score.problems} problems, {score.samples} samples)"
    yield f"solved at all     {score.solved} of {score.problems}"
    if abs(score.share - score.pass_at_1) > 1e-12:
        yield f"parts right       {score.share:.2%}"
    for name, group in summary.groups.items():
        tokens = "" if group.prompt_tokens is None else f", {group.prompt_tokens:.0f} prompt tokens"
        yield f"  {name:<20} {_rate(group)}  ({group.problems} problems{tokens})"
    for name, count in (
        ("skipped problems", summary.skipped),
        ("missing samples", summary.missing),
        ("errors", summary.errors),
    ):
        if count:
            yield f"{name:<17} {count}"
    yield f"truncated         {summary.truncation_rate:.2%}"
    if summary.completion_tokens is not None:
        yield f"tokens a sample   {summary.completion_tokens:.1f}, reasoning included"
    if summary.calibration_error is not None:
        yield f"calibration error {summary.calibration_error:.2%}"
    yield (
        f"tokens            {use.prompt_tokens} prompt ({use.cached_tokens} cached), "
        f"{use.completion_tokens} completion"
    )
    yield (
        f"time              {summary.wall_seconds:.1f} s; a sample p50 "
        f"{summary.seconds_p50:.2f} s, p95 {summary.seconds_p95:.2f} s"
    )
    yield from _use_lines(summary)


def _use_lines(summary: Summary) -> Iterator[str]:
    if summary.attempts_per_success is not None:
        yield f"attempts          {summary.attempts_per_success:.2f} a finished task"
    if summary.use.device_seconds is not None:
        finished = _each(summary.device_seconds_per_success, "{:.2f} a finished task")
        yield f"device-seconds    {summary.use.device_seconds:.1f}; {finished}"
    cost = summary.cost
    if cost is None:
        return
    if cost.owner is not None:
        finished = _each(summary.cost_per_success, "{:.6g} a finished task")
        yield (
            f"cost              {cost.owner:.6g} {cost.currency}; {finished} (devices "
            f"{cost.device:.6g}, energy {cost.energy:.6g} estimated, staff {cost.staff:.6g})"
        )
    if cost.list_price is not None:
        yield f"at list price     {cost.list_price:.6g} {cost.currency}"


def _rate(score: Score) -> str:
    error = score.standard_error
    return f"{score.pass_at_1:.2%}" + ("" if error is None else f" ± {error:.2%}")


def _each(value: float | None, form: str) -> str:
    return "no task finished" if value is None else form.format(value)
