"""Lowers the TileLang kernels ahead of time: `python -m deepinfer.bench.aot_tilelang`.

Prints a table. Needs TileLang but no device; with nvcc the CUDA sources are compiled. Knows nothing
of time.
"""

from __future__ import annotations

from deepinfer.ops.aot_tilelang import Lowered, can_compile, descriptions, lower
from deepinfer.ops.tilelang_refusals import SERVED

_HEAD = ("operation", "machine", "result", "lines", "copies in", "copies out")


def _line(done: Lowered) -> str:
    result = done.error or ("compiled" if done.compiled else "lowered")
    copies: tuple[object, object] = ("", "")
    if done.machine == "ascend":
        copies = done.copies("gm2ub"), done.copies("ub2gm") + done.copies("l0c2gm")
    cells = (done.operation, done.machine, result, len(done.source.splitlines()), *copies)
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Lower every kernel for every machine; exit 1 if one fails."""
    failures = 0
    print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}")
    for machine in SERVED:
        for operation in descriptions():
            done = lower(operation, machine, compiles=can_compile())
            failures += not done.has_kernel
            print(_line(done), flush=True)
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
