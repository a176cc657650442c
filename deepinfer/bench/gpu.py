"""Bench of the GPU kernels: `python -m deepinfer.bench.gpu --json result.json [--only NAME]`.

Each line compares ours with a floor and a peer of the same run, and with the marks of the kernels.
Correctness is the business of `tests/gpu`; here a wrong result only stops the line. Knows nothing
of the engine.
"""

from __future__ import annotations

import argparse
import json as json_text
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from deepinfer.bench.gpu_marks import markdown, marked
from deepinfer.bench.gpu_suites import SUITES
from deepinfer.bench.measure import Record, ceilings, environment
from deepinfer.device import find_device
from deepinfer.errors import ConfigError


def run(
    *, json: bool = False, only: Sequence[str] = (), sweep: bool = False, commit: str = ""
) -> list[dict[str, object]]:
    """Run suites on the first GPU, printing each record as it comes.

    Args:
        json: print one JSON object a record instead of a table.
        only: names of `SUITES`; empty = all.
        sweep: also time other tiles and plans; their records carry no marks.
        commit: written into every record.

    Returns:
        The records, with marks, ceilings, hardware and versions.

    Raises:
        ConfigError: there is no GPU that the kernels serve.
    """
    device = find_device("cuda")
    if device.arch != "sm90":
        raise ConfigError(f"the kernels are written for sm90, this is {device.arch}")
    torch.manual_seed(time.time_ns() % 2**31)
    top = ceilings(device.torch)
    if not json:
        head = f"read {top.read / 1e12:.2f} TB/s, copy {top.copy / 1e12:.2f} TB/s"
        print(f"{head}, matmul {top.matmul / 1e12:.0f} TFLOP/s", flush=True)
    common = environment(device.torch) | {"commit": commit}
    common |= {f"ceiling_{name}": value for name, value in vars(top).items()}
    found: list[dict[str, object]] = []
    with torch.inference_mode():
        for name in only or SUITES:
            for record, trial in SUITES[name](device.torch, top, sweep):
                found.append(marked({**record.row(), **common, "trial": trial}))
                print(json_text.dumps(found[-1]) if json else _line(record, found[-1]), flush=True)
    return found


def _line(record: Record, row: Mapping[str, object]) -> str:
    speedup = "     -" if row["speedup"] is None else f"{row['speedup']:5.2f}x"
    trial = "trial" if row["trial"] else row["mark"] or ""
    return (
        f"{record.name:30s} {record.ours_us:9.1f} us  floor {row['of_floor']:.2f} "
        f"({record.floor})  peer {speedup}  spread {record.spread:.3f}  {trial}  {record.note}"
    )


def main() -> None:
    """`python -m deepinfer.bench.gpu`: the suites with more choices than the command line has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the records, one a line")
    parser.add_argument("--markdown", type=Path, help="file for a table of the records")
    parser.add_argument("--only", choices=sorted(SUITES), action="append", help="suites to run")
    parser.add_argument("--sweep", action="store_true", help="also time other tiles and plans")
    parser.add_argument("--assert", dest="strict", action="store_true", help="exit 1 below a mark")
    parser.add_argument("--commit", default="", help="written into every record")
    args = parser.parse_args()
    found = run(only=args.only or (), sweep=args.sweep, commit=args.commit)
    if args.json:
        args.json.write_text("".join(json_text.dumps(row) + "\n" for row in found))
    if args.markdown:
        args.markdown.write_text(markdown(found))
    below = [str(row["name"]) for row in found if row["mark"] == "below"]
    for name in below:
        print(f"below the mark: {name}")
    raise SystemExit(1 if below and args.strict else 0)


if __name__ == "__main__":
    main()
