"""What a step costs: work in numbers, and seconds from it. Knows nothing of plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from deepinfer.errors import ConfigError

FROM_ROOFLINES = "from rooflines, not measured"


class StepWork(NamedTuple):
    """What a step computes.

    Attributes:
        prefill_tokens: known tokens computed, those of replays included.
        prefill_pairs: pairs of such a token and a token before it in its request, itself included.
        rows: rows that decode.
        context_tokens: tokens known of all of these.
        drafts: drafts verified.
    """

    prefill_tokens: int
    prefill_pairs: int
    rows: int
    context_tokens: int
    drafts: int


class Cost(Protocol):
    """Durations of steps."""

    @property
    def host(self) -> float:
        """Seconds of planning a step."""
        ...

    @property
    def source(self) -> str:
        """Where the numbers come from."""
        ...

    def seconds(self, work: StepWork) -> float:
        """Time on the device."""
        ...

    def to_dict(self) -> dict[str, object]:
        """What a report says of it."""
        ...


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, linear in its work.

    The defaults describe one H200 as a rank of eight: 20 encoder layers for prompts, all 40 for
    decoding, weights read once a step (performance.md 3.3, 3.5, 3.7).

    Attributes:
        base: of any step: weights are read.
        prefill_token: of a prompt token.
        prefill_pair: of an index score in prefill.
        decode_row: of a row that decodes.
        context_token: of a known token of such a row: its index keys are read.
        draft: of a draft that is verified.
        tile: decoding rows and drafts are computed in multiples of it; the rest of a tile costs as
            much as drafts do.
        host: of planning a step; hidden behind the step before when that one is still uncollected.
        source: where the numbers come from.
    """

    base: float = 10e-3
    prefill_token: float = 22.0e-6  # 17.3 GFLOP at 788 TFLOP/s
    prefill_pair: float = 1.6e-11  # 3 layers, half the entries, 8192 FLOP each
    decode_row: float = 51e-6  # 40 GFLOP at 788 TFLOP/s
    context_token: float = 4.0e-11  # 170 B at 4.3 TB/s
    draft: float = 51e-6
    tile: int = 1
    host: float = 0.5e-3
    source: str = FROM_ROOFLINES

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "source" and not (isinstance(value, (int, float)) and value >= 0):
                raise ConfigError(f"cost {item.name} {value!r}: use seconds >= 0")
        if not isinstance(self.tile, int) or self.tile < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"cost tile {self.tile!r}: use an integer >= 1")
        if not self.base > 0:
            raise ConfigError(f"cost base {self.base!r}: a step takes time, use seconds > 0")

    def seconds(self, work: StepWork) -> float:
        """Time on the device."""
        wasted = -(work.rows + work.drafts) % self.tile
        return (
            self.base
            + self.prefill_token * work.prefill_tokens
            + self.prefill_pair * work.prefill_pairs
            + self.decode_row * work.rows
            + self.context_token * work.context_tokens
            + self.draft * (work.drafts + wasted)
        )

    def to_dict(self) -> dict[str, object]:
        """Coefficients by name, as `read_cost` reads them."""
        return asdict(self)


def read_cost(path: Path) -> StepCost:
    """Coefficients of a JSON object; those left out keep their defaults.

    `source` must be there, so that a report says where its numbers come from.

    Raises:
        ConfigError: it cannot be read, or a name or a value is wrong.
    """
    try:
        data: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(data, dict) or "source" not in data:
        raise ConfigError(f"{path}: expected an object with coefficients and their 'source'")
    values = cast("Mapping[str, object]", data)
    if unknown := sorted(set(values) - {item.name for item in fields(StepCost)}):
        raise ConfigError(f"{path}: unknown coefficient(s) {unknown}")
    return StepCost(**values)  # pyright: ignore[reportArgumentType] - checked by the class
