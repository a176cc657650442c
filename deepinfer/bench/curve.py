"""Points of a sweep as files: JSON lines, a table, and one plot. Knows nothing of measuring."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.bench.simulate.plot import Panel, Series, draw
from deepinfer.errors import ConfigError

Record = Mapping[str, Any]


class Column(NamedTuple):
    """A column of a table: heading, field and format."""

    heading: str
    field: str
    format: str = ""


class Sweep(NamedTuple):
    """How points of one kind are shown.

    Attributes:
        title: of the table.
        columns: of it.
        x, y: fields of the plot's axes.
        axis, plot: what they count.
        log: the second axis is logarithmic.
    """

    title: str
    columns: Sequence[Column]
    x: str
    y: str
    axis: str
    plot: str
    log: bool

    def bound(self, point: Record) -> tuple[float, float]:
        """The point as it were if the step took no longer than its floor."""
        by = 1 / point["of_floor"]
        x = point[self.x]
        return x / by if self.x == "latency_ms" else x * by, point[self.y] * by


_COMMON = (
    Column("spread", "spread", ".3f"),
    Column("floor ms", "floor_ms", ".2f"),
    Column("bound by", "floor_bound"),
    Column("floor / measured", "of_floor", ".2f"),
)
SWEEPS: Mapping[str, Sweep] = {
    "decode": Sweep(
        "Decoding steps",
        (
            Column("requests", "rows"),
            Column("context", "length", ","),
            Column("drafts", "drafts"),
            Column("step ms", "step_ms", ".2f"),
            *_COMMON,
            Column("tokens/s and GPU", "gpu_tokens_s", ",.0f"),
            Column("tokens/s and user", "user_tokens_s", ",.1f"),
        ),
        "user_tokens_s",
        "gpu_tokens_s",
        "tokens a second and user",
        "tokens a second and GPU",
        True,
    ),
    "prefill": Sweep(
        "Steps that compute prompts",
        (
            Column("requests", "rows"),
            Column("prompt", "length", ","),
            Column("of it new", "uncached", ","),
            Column("tokens a step", "budget", ","),
            Column("steps", "steps"),
            Column("step ms", "step_ms", ".2f"),
            Column("latency ms", "latency_ms", ".2f"),
            *_COMMON,
            Column("new tokens/s and GPU", "gpu_new_tokens_s", ",.0f"),
            Column("prompt tokens/s and GPU", "gpu_prompt_tokens_s", ",.0f"),
        ),
        "latency_ms",
        "gpu_new_tokens_s",
        "from the first step to the token, ms",
        "new tokens a second and GPU",
        False,
    ),
}


# Fields whose values make a line of a plot, and what it is called.
_NAMES = {"model": "{}", "drafts": "{} drafts", "uncached": "{:,} new"}


def points(records: Sequence[Record]) -> list[Record]:
    """Those records that are points of a sweep, in ascending order of requests and budgets."""
    found = (record for record in records if "floor_ms" in record)
    return sorted(found, key=lambda record: (record["rows"], record.get("budget", 0)))


def markdown(what: str, records: Sequence[Record]) -> str:
    """The table of a sweep, what it assumes, and the time of operations if there are any.

    Args:
        what: a key of `SWEEPS`.
        records: of `decode` or `prefill`, with what they ran on.
    """
    sweep, shown = SWEEPS[what], points(records)
    first = shown[0]
    lines = [
        f"# {sweep.title}: {first['model']} on {first['device']}",
        "",
        f"torch {first['torch']}, CUDA {first['cuda']}, Triton {first['triton']}; ceilings of this "
        f"run: read {first['read_tb_s']:.3g} TB/s, product {first['matmul_tflop_s']:.3g} TFLOP/s.",
        *(f"{line}" for line in _assumed(first)),
        "",
        f"| {' | '.join(column.heading for column in sweep.columns)} |",
        f"|{'---|' * len(sweep.columns)}",
        *(_line(sweep.columns, point) for point in shown),
    ]
    times = [record for record in records if "operation" in record]
    if times:
        lines += [
            "",
            "| operation | part | requests | calls | ms a step |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['operation']} | {r['part']} | {r['rows']} | {r['calls']} | {r['us'] / 1e3:.3f} |"
            for r in times
        ]
    return "\n".join(lines) + "\n"


def _assumed(point: Record) -> list[str]:
    lines = [f"Hit rate {point['hit_rate']}: {point['hit_rate_is']}."]
    if point.get("acceptance") is not None:
        lines.append(f"Acceptance {point['acceptance']:.3f}: {point['acceptance_is']}.")
    return lines


def _line(columns: Sequence[Column], point: Record) -> str:
    return f"| {' | '.join(format(point[c.field], c.format) for c in columns)} |"


def plot(what: str, records: Sequence[Record]) -> str:
    """Throughput over speed or latency as SVG: what was measured, and what the floors allow.

    A panel for each length; points of several models, numbers of drafts or of new tokens are a
    line each, without floors.
    """
    sweep, shown = SWEEPS[what], points(records)
    lengths = sorted({point["length"] for point in shown})
    panels = [_panel(sweep, [p for p in shown if p["length"] == length]) for length in lengths]
    if len(panels) > 1:
        titles = [f"{sweep.plot}, {length:,} tokens" for length in lengths]
        panels = [panel._replace(title=t) for panel, t in zip(panels, titles, strict=True)]
    end = max(max(one.x) for panel in panels for one in panel.series)
    return draw(panels, end, sweep.axis)


def _panel(sweep: Sweep, shown: Sequence[Record]) -> Panel:
    differ = {name for name in _NAMES if len({point.get(name) for point in shown}) > 1}
    groups: dict[str, list[tuple[float, float]]] = {}
    for point in shown:
        name = ", ".join(_NAMES[field].format(point[field]) for field in _NAMES if field in differ)
        groups.setdefault(name, []).append((point[sweep.x], point[sweep.y]))
    if not differ:
        groups = {"measured": groups[""], "floor": [sweep.bound(point) for point in shown]}
    series = [
        Series(name, [x for x, _ in sorted(places)], [y for _, y in sorted(places)])
        for name, places in groups.items()
    ]
    return Panel(sweep.plot, series, log=sweep.log)


def write(folder: Path, what: str, records: Sequence[Record]) -> list[Path]:
    """Write `<what>.jsonl`, `<what>.md` and `<what>.svg`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    contents = {
        "jsonl": "".join(json.dumps(record) + "\n" for record in records),
        "md": markdown(what, records),
        "svg": plot(what, records),
    }
    paths = [folder / f"{what}.{kind}" for kind in contents]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, contents.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error}") from error
    return paths
