"""How well tables of some measured steps predict others, and what the published curve would be.

Knows nothing of devices.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepinfer.arch import Arch
from deepinfer.bench.simulate.published import SHOWN, Guess, curve, sensitivity
from deepinfer.bench.simulate.tables import (
    Measured,
    Prediction,
    StepModel,
    StepShape,
    fit,
    predictions,
)
from deepinfer.errors import ConfigError

Record = dict[str, Any]
_BY = 0.2
_CHANGES: Mapping[str, Callable[[StepModel, float], StepModel]] = {
    "operations": lambda m, by: replace(m, scale=m.scale * by),
    "base": lambda m, by: replace(m, base=m.base * by),
    "token": lambda m, by: replace(m, token=m.token * by),
    "draft": lambda m, by: replace(m, draft=m.draft * by),
}


def split(points: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Points to fit and points to predict.

    Those with times of operations are fitted if there are any without; else every second one is.

    Raises:
        ConfigError: nothing is left to predict.
    """
    known = [point for point in points if point.operations]
    rest = [point for point in points if not point.operations]
    if not rest:
        known, rest = list(points[::2]), list(points[1::2])
    if not rest:
        raise ConfigError("one point: measure more, to fit some and predict the others")
    return known, rest


def record(points: Sequence[Measured], arch: Arch) -> tuple[Record, StepModel]:
    """Fit, predict, vary.

    Args:
        points: of `tables.read_points`.
        arch: of the release, for the published curve.

    Returns:
        plain data for JSON; "predict" has the errors of what was not fitted. And the model.
    """
    known, rest = split(points)
    model = fit(known)
    fitted, found = predictions(model, known), predictions(model, rest)
    errors = [abs(each.error) for each in found]
    return {
        "name": "predict",
        "fitted_points": len(known),
        "predicted_points": len(rest),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "fitted_median_error": statistics.median(abs(each.error) for each in fitted),
        "scale": model.scale,
        "base_ms": model.base * 1e3,
        "token_us": model.token * 1e6,
        "draft_ms": model.draft * 1e3,
        "fitted": [_plain(each) for each in fitted],
        "predicted": [_plain(each) for each in found],
        "sensitivity": _sensitivity(model, [each.shape for each in found]),
        "published": {rule: _published(arch, Guess(rule=rule)) for rule in ("sum", "max")},
        "published_sensitivity": sensitivity(arch, Guess()),
    }, model


def _plain(found: Prediction) -> Record:
    return {
        **found.shape._asdict(),
        "measured_ms": found.measured * 1e3,
        "predicted_ms": found.predicted * 1e3,
        "error": found.error,
    }


def _sensitivity(model: StepModel, shapes: Sequence[StepShape]) -> Record:
    """Mean relative change of the predicted steps with each constant lower and higher."""
    plain = [model.seconds(shape) for shape in shapes]

    def at(changed: StepModel) -> float:
        times = [changed.seconds(shape) for shape in shapes]
        return statistics.fmean(new / old - 1 for new, old in zip(times, plain, strict=True))

    return {
        name: [at(change(model, 1 - _BY)), at(change(model, 1 + _BY))]
        for name, change in _CHANGES.items()
    }


def _published(arch: Arch, guess: Guess) -> list[Record]:
    return [
        {
            "rows": line.rows,
            "step_ms": line.seconds * 1e3,
            "published_ms": None if line.published is None else line.published * 1e3,
            "error": None if line.published is None else line.seconds / line.published - 1,
            "user_tokens_s": line.user,
            "gpu_tokens_s": line.gpu,
        }
        for line in curve(arch, guess)
    ]


def markdown(found: Record) -> str:
    """The record for people."""
    lines = [
        "# Predicted steps",
        "",
        f"Tables and four constants from {found['fitted_points']} measured steps predict "
        f"{found['predicted_points']} others: median error {found['median_error']:.1%}, worst "
        f"{found['worst_error']:.1%} (of the fitted ones: {found['fitted_median_error']:.1%}).",
        f"seconds = {found['scale']:.3f} x operations + {found['base_ms']:.3f} ms + "
        f"{found['token_us']:.2f} us a token + {found['draft_ms']:.3f} ms with drafts.",
        "",
        "| experts | requests | context | drafts | measured ms | predicted ms | error |",
        "|---|---|---|---|---|---|---|",
        *(_step_line(each) for each in found["predicted"]),
        "",
        "| constant | 20 % lower | 20 % higher |",
        "|---|---|---|",
        *(
            f"| {name} | {low:+.1%} | {high:+.1%} |"
            for name, (low, high) in found["sensitivity"].items()
        ),
        "",
        "## The published curve: predicted, not measured",
        "",
        "| reading and products | requests a GPU | step ms | published ms | error | tokens/s and "
        "user | tokens/s and GPU |",
        "|---|---|---|---|---|---|---|",
        *(
            _published_line("one after the other" if rule == "sum" else "overlap", line)
            for rule, points in found["published"].items()
            for line in points
        ),
        "",
        f"| parameter | {' | '.join(f'B={rows}, -20 % | +20 %' for rows in SHOWN)} |",
        f"|{'---|' * (1 + 2 * len(SHOWN))}",
        *(
            f"| {name} | {' | '.join(f'{low:+.1%} | {high:+.1%}' for low, high in values)} |"
            for name, values in found["published_sensitivity"].items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _step_line(each: Record) -> str:
    return (
        f"| {each['experts']} | {each['rows']} | {each['length']:,} | {each['drafts']} | "
        f"{each['measured_ms']:.2f} | {each['predicted_ms']:.2f} | {each['error']:+.1%} |"
    )


def _published_line(rule: str, line: Record) -> str:
    known = line["published_ms"] is not None
    published = f"{line['published_ms']:.1f} | {line['error']:+.1%}" if known else "- | -"
    return (
        f"| {rule} | {line['rows']} | {line['step_ms']:.1f} | {published} | "
        f"{line['user_tokens_s']:.0f} | {line['gpu_tokens_s']:,.0f} |"
    )


def write(folder: Path, found: Record) -> list[Path]:
    """Write `predict.md` and `predict.json`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    paths = folder / "predict.md", folder / "predict.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(markdown(found), encoding="utf-8")
        paths[1].write_text(json.dumps(found) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error}") from error
    return list(paths)
