"""Marks of the GPU kernels and the table of a result file. Knows nothing of how time is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_EXPERTS = {"of_floor": (0.50, 0.75), "speedup": (2.8, 3.9)}
_MANY = {"of_floor": (0.50, 0.70)}
_LINEAR = {"of_floor": (0.55, 0.75)}
_SCORES = {"of_floor": (0.30, 0.50)}
_BEST = {"of_floor": (0.25, 0.50)}
# Pass and aim of record fields, by record name.
MARKS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    **{f"experts E={e} T={t}": _EXPERTS for e in (48, 6) for t in (8, 64)},
    **{f"experts E={e} T=4096": _MANY for e in (48, 6)},
    **{f"linears of a layer T={t}": _LINEAR for t in (8, 64)},
    "mhc_boundary T=64": {"of_floor": (0.4, 0.6), "speedup": (5.0, 10.0)},
    "mhc_boundary T=1024": {"of_floor": (0.4, 0.6), "speedup": (5.0, 10.0)},
    "sparse_attention T=1024": {"of_floor": (0.20, 0.40), "speedup": (4.0, 8.0)},
    "sparse_attention T=4096": {"of_floor": (0.40, 0.55)},
    **{
        f"index scores {n} T={requests}": _SCORES
        for n in (16_384, 65_536, 131_072)
        for requests in ("64 x 1", "64 x 4", "256 x 1")
    },
    **{
        f"top 512 {kind} {rows} x {n}": _BEST
        for kind in ("bf16", "fp32")
        for rows in (256, 4096)
        for n in (65_536, 262_144, 1_048_576)
    },
    **{f"top 512 {kind}, geometric mean": {"speedup": (2.0, 5.0)} for kind in ("bf16", "fp32")},
}

# Of the draft pass: so many times the floor, and microseconds more; pass and aim.
DRAFTS = "draft pass "
DRAFT_LIMITS = ((1.5, 1000.0), (1.2, 600.0))


def marked(row: Mapping[str, object]) -> dict[str, object]:
    """The record with `pass`, `aim` (its marks by field) and `mark`: "aim", "pass" or "below"."""
    if str(row["name"]).startswith(DRAFTS):
        return {**row, **_of_drafts(_number(row["ours_us"]), _number(row["floor_us"]))}
    marks = MARKS.get(str(row["name"]))
    if marks is None or row["trial"]:
        return {**row, "pass": None, "aim": None, "mark": None}

    def reached(which: int) -> bool:
        return all(_number(row[field]) >= pair[which] for field, pair in marks.items())

    return {
        **row,
        "pass": {field: pair[0] for field, pair in marks.items()},
        "aim": {field: pair[1] for field, pair in marks.items()},
        "mark": "aim" if reached(1) else "pass" if reached(0) else "below",
    }


def _of_drafts(ours: float, floor: float) -> dict[str, object]:
    most = [factor * floor + more for factor, more in DRAFT_LIMITS]
    limits = zip(("pass", "aim"), ({"ours_us": value} for value in most), strict=True)
    mark = "aim" if ours <= most[1] else "pass" if ours <= most[0] else "below"
    return {**dict(limits), "mark": mark}


def _number(value: object) -> float:
    assert isinstance(value, float), "a marked field is a number"
    return value


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """A table of the records without trials."""
    lines = [
        "| what | us | floor us | floor / ours | of which floor | peer us | peer / ours | mark |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        if row["trial"]:
            continue
        peer, speedup = row["peer_us"], row["speedup"]
        cells = (
            row["name"],
            f"{row['ours_us']:.1f}",
            f"{row['floor_us']:.1f}",
            f"{row['of_floor']:.2f}",
            row["floor"],
            "" if peer is None else f"{peer:.1f}",
            "" if speedup is None else f"{speedup:.2f}",
            row["mark"] or "",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
