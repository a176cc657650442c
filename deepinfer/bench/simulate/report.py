"""What a simulation came to: a record, Markdown, CSV curves. Knows nothing of how it ran."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.bench.simulate.plot import Panel, Series, draw
from deepinfer.bench.simulate.run import Outcome, Setup
from deepinfer.errors import ConfigError

Record = dict[str, Any]
_MOST_POINTS = 2000  # of a curve: more are not seen and not wanted in a file


def spread(values: Iterable[float | None]) -> Record:
    """Count, mean and percentiles of what is there; None where nothing is."""
    found = np.array([value for value in values if value is not None], np.float64)
    if not len(found):
        return {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    p50, p90, p99 = (round(float(v), 6) for v in np.percentile(found, (50, 90, 99)))
    mean = round(float(found.mean()), 6)
    return {"count": len(found), "mean": mean, "p50": p50, "p90": p90, "p99": p99}


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def summary(outcome: Outcome, setup: Setup, label: str) -> Record:
    """The record of a run.

    Args:
        outcome: of `simulate`.
        setup: what served it.
        label: name of the trace.

    Returns:
        plain data for JSON. `hit_tokens` are those of shared pages, `saved_tokens` those not
        computed again: a hit less what is replayed for its windows.
    """
    served = [entry for entry in outcome.served if entry.error is None]
    prompts = sum(entry.prompt_tokens for entry in served)
    outputs = sum(entry.output_tokens for entry in served)
    found, saved, oracle = (
        sum(getattr(entry, name) for entry in served) for name in ("found", "saved", "oracle")
    )
    last = outcome.points[-1].counters if outcome.points else None
    limits, caching = setup.limits, setup.limits.caching
    return {
        "trace": label,
        "setup": {
            "policy": setup.policy.name,
            "overlap": setup.overlap,
            "caching": "off" if caching is None else "exact" if caching.exact else "bounded",
            "replay_tokens": 0 if caching is None else caching.replay,
            "snapshots": 0 if caching is None else caching.snapshots,
            "pages": limits.num_pages,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "drafts": limits.max_draft,
            "adaptive": limits.drafting.adaptive if limits.max_draft else None,
            "assumed_acceptance": setup.acceptance if limits.max_draft else None,
            "cost": setup.cost.to_dict(),
            "checked": setup.check,
        },
        "requests": len(outcome.served),
        "refused": len(outcome.served) - len(served),
        "seconds": round(outcome.seconds, 3),
        "device_busy": _ratio(outcome.busy, outcome.seconds),
        "steps": len(outcome.points),
        "preemptions": sum(entry.preemptions for entry in served),
        "prefix": {
            "prompt_tokens": prompts,
            "hit_tokens": found,
            "saved_tokens": saved,
            "oracle_tokens": oracle,
            "hit_rate": _ratio(found, prompts),
            "saved_rate": _ratio(saved, prompts),
            "oracle_rate": _ratio(oracle, prompts),
            "hit_of_oracle": _ratio(found, oracle),
            "saved_of_oracle": _ratio(saved, oracle),
        },
        "ttft_seconds": spread(entry.ttft for entry in served),
        "tpot_seconds": spread(entry.tpot for entry in served),
        "throughput": {
            "output_tokens": outputs,
            "output_tokens_per_second": _ratio(outputs, outcome.seconds),
            "prompt_tokens_per_second": _ratio(prompts, outcome.seconds),
            "requests_per_second": _ratio(len(served), outcome.seconds),
        },
        "pages": _over_time(outcome, "pages_used"),
        "queue": _over_time(outcome, "waiting"),
        "decoding_rows": _over_time(outcome, "decoding"),
        "drafts_accepted": _ratio(last.drafts_accepted, last.drafts_verified) if last else None,
        "plans_digest": outcome.plans,
    }


def _over_time(outcome: Outcome, name: str) -> Record:
    """Mean over time and maximum of a counter; it holds from one step to the next."""
    points = outcome.points
    if not points:
        return {"mean": None, "max": None}
    values = np.array([getattr(point.counters, name) for point in points], np.float64)
    times = np.array([0.0, *(point.seconds for point in points)])
    weights = np.diff(times)
    mean = float((values * weights).sum() / weights.sum())
    return {"mean": round(mean, 2), "max": int(values.max())}


def markdown(record: Record) -> str:
    """The record for people."""
    setup, prefix, rates = record["setup"], record["prefix"], record["throughput"]
    lines = [
        f"# Simulation of {record['trace']}",
        "",
        f"{record['requests']} requests, {record['refused']} refused, {record['seconds']} simulated"
        f" seconds in {record['steps']} steps, device busy {record['device_busy']}.",
        f"Step costs: {setup['cost']['source']}.",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in setup.items() if name != "cost"),
        "",
        "| prompt tokens | number | of the prompts | of the oracle |",
        "|---|---|---|---|",
        f"| all | {prefix['prompt_tokens']} | 1 | |",
        f"| oracle: an infinite cache | {prefix['oracle_tokens']} | {prefix['oracle_rate']} | 1 |",
        f"| hit: in shared pages | {prefix['hit_tokens']} | {prefix['hit_rate']} | "
        f"{prefix['hit_of_oracle']} |",
        f"| saved: hit less replay | {prefix['saved_tokens']} | {prefix['saved_rate']} | "
        f"{prefix['saved_of_oracle']} |",
        "",
        "| milliseconds | mean | p50 | p90 | p99 |",
        "|---|---|---|---|---|",
        _milliseconds("to the first token", record["ttft_seconds"]),
        _milliseconds("a token after it", record["tpot_seconds"]),
        "",
        "| over time | mean | max |",
        "|---|---|---|",
        *(
            f"| {label} | {record[name]['mean']} | {record[name]['max']} |"
            for name, label in (
                ("pages", "pages in use"),
                ("queue", "requests that wait"),
                ("decoding_rows", "rows that decode"),
            )
        ),
        "",
        f"{rates['output_tokens_per_second']} output tokens/s, "
        f"{rates['prompt_tokens_per_second']} prompt tokens/s, "
        f"{rates['requests_per_second']} requests/s, {record['preemptions']} preemptions. "
        f"Plans: `{record['plans_digest']}`.",
    ]
    return "\n".join(lines) + "\n"


def _milliseconds(label: str, values: Record) -> str:
    cells = (values[name] for name in ("mean", "p50", "p90", "p99"))
    shown = ("-" if value is None else f"{value * 1e3:.1f}" for value in cells)
    return f"| {label} | {' | '.join(shown)} |"


def _thin(outcome: Outcome) -> list[int]:
    """Indices of the points that are written, the last one always."""
    count = len(outcome.points)
    every = -(-count // _MOST_POINTS)
    return sorted({*range(0, count, max(every, 1)), *([count - 1] if count else [])})


def write_files(folder: Path, record: Record, outcome: Outcome) -> list[Path]:
    """Write `report.md`, `curves.csv`, `requests.csv` and `curves.svg`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    places = _thin(outcome)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.md").write_text(markdown(record), encoding="utf-8")
        (folder / "curves.svg").write_text(_curves(outcome, places), encoding="utf-8")
        with (folder / "curves.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            names = outcome.points[0].counters._fields if outcome.points else ()
            writer.writerow(["seconds", *names])
            for place in places:
                point = outcome.points[place]
                writer.writerow([round(point.seconds, 6), *point.counters])
        with (folder / "requests.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            columns = ("number", "arrival", "prompt_tokens", "output_tokens", "oracle", "found")
            columns += ("saved", "ttft", "tpot", "preemptions", "error")
            writer.writerow(columns)
            for entry in outcome.served:
                writer.writerow([getattr(entry, name) for name in columns])
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error}") from error
    return [folder / name for name in ("report.md", "curves.csv", "requests.csv", "curves.svg")]


def _curves(outcome: Outcome, places: Sequence[int]) -> str:
    """Queue, pages, hit rate and latency over time as an SVG image."""
    points = [outcome.points[place] for place in places]
    times = [point.seconds for point in points]

    def counter(name: str) -> Series:
        label = name.replace("_", " ")
        return Series(label, times, [getattr(point.counters, name) for point in points])

    rates = [
        p.counters.prompt_tokens_cached / p.counters.prompt_tokens
        if p.counters.prompt_tokens
        else 0
        for p in points
    ]
    done = sorted(
        (e.finished, e.ttft, e.tpot)
        for e in outcome.served
        if e.finished is not None and e.ttft is not None and e.tpot is not None
    )
    ends = [end for end, _, _ in done]
    panels = [
        Panel("requests", [counter("waiting"), counter("prefilling"), counter("decoding")]),
        Panel("pages", [counter("pages_used"), counter("pages_cached")]),
        Panel("part of prompt tokens saved so far", [Series("saved", times, rates)]),
        Panel(
            "latency of requests by end, ms",
            [
                Series("first token", ends, [1e3 * ttft for _, ttft, _ in done], dots=True),
                Series("a token after it", ends, [1e3 * tpot for _, _, tpot in done], dots=True),
            ],
            log=True,
        ),
        Panel("preemptions", [counter("preemptions")]),
    ]
    return draw(panels, outcome.seconds, "simulated seconds")
