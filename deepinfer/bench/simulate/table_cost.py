"""Step costs from measured tables, for whole simulated services. Knows nothing of plans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from deepinfer.bench.simulate.cost import Cost, StepWork, read_cost
from deepinfer.bench.simulate.tables import Entry, StepModel, StepShape, Tables
from deepinfer.errors import ConfigError

_HOST = 0.5e-3  # of planning a step, as `StepCost`
_CONSTANTS = ("scale", "base", "token", "draft")


@dataclass(frozen=True)
class PromptCost:
    """Seconds of a step's prompts: a constant where nothing decodes, then a token and a pair."""

    base: float
    token: float
    pair: float


@dataclass(frozen=True)
class TableCost:
    """Steps of a rank with so many experts, by tables of decoding steps and a line for prompts.

    Attributes:
        model: of decoding.
        experts: of the rank.
        prompts: what prompts add.
        source: where the numbers come from.
        host: of planning a step.
    """

    model: StepModel
    experts: int
    prompts: PromptCost
    source: str
    host: float = _HOST

    def seconds(self, work: StepWork) -> float:
        """Time on the device."""
        seconds = self.prompts.token * work.prefill_tokens + self.prompts.pair * work.prefill_pairs
        if not work.rows:
            return seconds + self.prompts.base
        length = max(work.context_tokens / work.rows, 1.0)
        shape = StepShape(self.experts, work.rows, length, work.drafts / work.rows)
        return seconds + self.model.seconds(shape)

    def to_dict(self) -> dict[str, object]:
        """Constants, without the tables."""
        return {
            "source": self.source,
            "experts": self.experts,
            "host": self.host,
            **dict(zip(_CONSTANTS, self.model.constants, strict=True)),
            **{f"prompt_{name}": value for name, value in vars(self.prompts).items()},
        }

    def to_json(self) -> str:
        """All of it, as `read_step_cost` reads it."""
        return json.dumps(self.to_dict() | {"tables": self.model.tables.entries()})


def prompt_cost(records: Iterable[Mapping[str, Any]], experts: int) -> PromptCost:
    """The line through measured prompts, with the least relative errors (squares).

    Args:
        records: of `bench prefill --json`; others are not looked at.
        experts: of the rank.

    Raises:
        ConfigError: there are fewer than three points of such a rank.
    """
    found = [r for r in records if "uncached" in r and "floor_ms" in r and "drafts" not in r]
    found = [r for r in found if r["experts"] == experts and r.get("steps", 1) == 1]
    if len(found) < 3:
        raise ConfigError(f"{len(found)} points of prompts with {experts} experts: measure three")
    times = np.array([r["step_ms"] * 1e-3 for r in found])
    terms = np.array([_prompt_terms(r) for r in found])
    used = [0, 1, 2]
    while True:
        line = np.zeros(3)
        line[used] = np.linalg.lstsq(terms[:, used] / times[:, None], np.ones(len(times)))[0]
        if (line >= 0).all():
            return PromptCost(*(float(value) for value in line))
        used = [place for place in used if line[place] >= 0]


def _prompt_terms(record: Mapping[str, Any]) -> list[float]:
    new, cached = record["uncached"], record["length"] - record["uncached"]
    tokens = record["rows"] * new
    return [1.0, tokens, tokens * cached + record["rows"] * new * (new + 1) / 2]


def read_step_cost(path: Path) -> Cost:
    """The cost of a JSON file: tables (`bench predict --cost`), or coefficients of a `StepCost`.

    Raises:
        ConfigError: it cannot be read, or a name or a value is wrong.
    """
    try:
        data: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(data, dict) or "tables" not in data:
        return read_cost(path)
    values = cast("dict[str, Any]", data)
    try:
        tables = Tables(Entry(*entry) for entry in cast("Sequence[Any]", values["tables"]))
        model = StepModel(tables, *(float(values[name]) for name in _CONSTANTS))
        prompts = PromptCost(*(float(values[f"prompt_{n}"]) for n in ("base", "token", "pair")))
        return TableCost(
            model, int(values["experts"]), prompts, str(values["source"]), float(values["host"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not tables of bench predict: {error!r}") from error
