"""`deepinfer bench spec`: what drafts gain, by a cost model, by the operations, and on nano.

Knows nothing of how a number comes about; see spec_model.py, spec_rules.py and spec_nano.py.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepinfer.bench import spec_model as model
from deepinfer.bench.spec_nano import gain, nano_network
from deepinfer.bench.spec_rules import LAWS, lengths

Record = Mapping[str, Any]
_POINTS = ((1, 3, 0.75), (4, 3, 0.75))  # on nano: rows, drafts, acceptance


def run(directory: Path, json: bool) -> list[Record]:
    """Measure everything and print it.

    Args:
        directory: of the embedded model.
        json: one line of JSON a record instead of a table.
    """
    records: list[Record] = []
    for title, part in (
        ("cost model: tokens a simulated second, adaptive beside the best fixed number", _model()),
        ("the mix: seconds for the same tokens with 4 to 128 requests of all acceptances", _mix()),
        ("rules: tokens a block of 5 drafts gives, the one that always comes included", _rules()),
        ("nano on the CPU: tokens a second over those without drafts", _nano(directory)),
    ):
        if not json:
            print(f"\n{title}")
        for i, record in enumerate(part):
            records.append(record)
            _tell(record, json=json, header=i == 0)
    return [*records, _worst(records, json=json)]


def _tell(record: Record, *, json: bool, header: bool) -> None:
    if json:
        print(jsonlib.dumps(record), flush=True)
        return
    fields = {name: value for name, value in record.items() if name not in ("name", "rates")}
    if header:
        print(" ".join(f"{name:>9}" for name in fields), flush=True)
    print(" ".join(f"{value!s:>9}" for value in fields.values()), flush=True)


def _model() -> Iterator[Record]:
    """One record a cost, acceptance and number of rows."""
    for cost in model.COSTS:
        for acceptance in model.ACCEPTANCE:
            for rows in model.ROWS:
                yield point(cost, acceptance, rows)


def point(cost: str, acceptance: float, rows: int, *, steps: int = 384) -> Record:
    """Adaptive drafts beside 0 to 5 fixed ones; `ratio` is adaptive over the best of them.

    Args:
        cost: name in `spec_model.COSTS`.
        acceptance: of all requests.
        rows: requests.
        steps: that count.

    Returns:
        `best`: the best fixed number; `fixed`, `adaptive`: tokens a second; `cold`: the ratio when
        the first steps count too, in which the planner learns.
    """
    law = model.COSTS[cost], (acceptance,), rows
    fixed = [model.pace(*law, most, steps=steps) for most in range(model.MOST + 1)]
    adaptive = model.pace(*law, None, steps=steps)
    rates = [pace.warm for pace in fixed]
    best = max(range(len(rates)), key=rates.__getitem__)
    return {
        "name": f"spec {cost} {acceptance} x{rows}",
        "cost": cost,
        "accept": acceptance,
        "rows": rows,
        "best": best,
        "fixed": round(rates[best]),
        "adaptive": round(adaptive.warm),
        "ratio": round(adaptive.warm / rates[best], 4),
        "cold": round(adaptive.cold / max(pace.cold for pace in fixed), 4),
        "rates": [round(rate) for rate in rates],
    }


def _mix() -> Iterator[Record]:
    """One record a cost; `gain` is the best single fixed number's time over the adaptive one."""
    for name, cost in model.COSTS.items():
        fixed = [model.mix(cost, most) for most in range(model.MOST + 1)]
        adaptive = model.mix(cost, None)
        yield {
            "name": f"spec mix {name}",
            "cost": name,
            "best": fixed.index(min(fixed)),
            "fixed": round(min(fixed), 3),
            "adaptive": round(adaptive, 3),
            "gain": round(min(fixed) / adaptive, 4),
            "rates": [round(seconds, 3) for seconds in fixed],
        }


def _rules() -> Iterator[Record]:
    """One record a law; `of_ratio` is match over ratio."""
    for spread, disturbance in LAWS:
        found = lengths(spread, disturbance)
        yield {
            "name": f"spec rules {spread:g} {disturbance:g}",
            **found._asdict(),
            "of_ratio": round(found.match / found.ratio, 4),
        }


def _nano(directory: Path) -> Iterator[Record]:
    network = nano_network(directory)
    for rows, drafts, acceptance in _POINTS:
        found = gain(network, rows, drafts, acceptance)
        yield {"name": f"spec nano x{rows}", **found._asdict()}


def _worst(records: Sequence[Record], *, json: bool) -> Record:
    """The least of every ratio, for marks."""

    def least(field: str) -> float:
        values = [value for r in records if isinstance(value := r.get(field), float)]
        return min(values)

    worst = {
        "name": "spec worst",
        **{name: least(name) for name in ("ratio", "cold", "gain", "of_ratio", "agreement")},
    }
    if json:
        print(jsonlib.dumps(worst))
    else:
        parts = ", ".join(f"{name} {value}" for name, value in worst.items() if name != "name")
        print(f"\nleast of all: {parts}")
    return worst
