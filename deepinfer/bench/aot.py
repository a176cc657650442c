"""Compiles the GPU kernels ahead of time: `python -m deepinfer.bench.aot` prints a table.

Needs Triton but no GPU. Knows nothing of time.
"""

from __future__ import annotations

import argparse

from deepinfer.ops.aot import TARGETS, Compiled, Variant, compile_for, variants
from deepinfer.ops.aot_launches import launches
from deepinfer.ops.aot_portable import portable_launches

_HEAD = ("kernel", "target", "registers", "stack", "shared", "result", "constants")


def _line(variant: Variant, target: int, done: Compiled | None) -> str:
    sizes = ("", "", "") if done is None else (done.registers, done.stack, done.shared)
    result = "sm90 only" if done is None else done.error or "ok"
    cells = (variant.name, f"sm{target}", *sizes, result, variant.describe())
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Compile every kernel variant of the release's sizes; exit 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64, 4096], help="of a step")
    parser.add_argument("--only", default="", help="part of a kernel's name")
    args = parser.parse_args()
    calls = {**launches(args.tokens), **portable_launches(args.tokens)}
    listed = [v for v in variants(calls) if args.only in v.name]
    failures = 0
    print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}")
    for target in TARGETS:
        for variant in listed:
            skipped = variant.only_hopper and target != 90
            done = None if skipped else compile_for(variant, target)
            failures += bool(done and done.error)
            print(_line(variant, target, done), flush=True)
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
