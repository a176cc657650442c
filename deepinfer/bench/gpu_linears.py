"""Bench of the FP8 linear layers of one transformer layer, called as the model calls them.

`wq_a` and `wkv` are one product. Segments of the products that a norm or an activation reads are
added by that kernel; a second sum counts a launch that adds them, too. Knows nothing of marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.bench.measure import Ceilings, Record, graph_us
from deepinfer.ops.formats import Quantised, dequantise_fp8, dequantise_fp8_weight
from deepinfer.ops.linear_fp8 import triton as kernel
from deepinfer.ops.linear_fp8.plan import Tile, choose, segments
from deepinfer.ops.linear_fp8.reference import linear_fp8 as reference

LINEARS = {
    "low rank": (1280 + 512, 5120),
    "wq_b": (32768, 1280),
    "wo_b": (5120, 8192),
    "shared w13": (4608, 5120),
    "shared w2": (5120, 2304),
}
ADDED_BY_READER = ("low rank", "shared w13")
TOKENS = (8, 64, 256, 4096)
# Other tiles; more buffers let fewer programs share a multiprocessor.
TRIALS = {
    8: (),
    64: (Tile(128, 64, 4, 4, None, True), Tile(64, 64, 4, 4, None, True)),
    256: (Tile(64, 64, 4, 4, None, True), Tile(128, 128, 4, 4, 168, True)),
    4096: (),
}
_ROTATE_BYTES = 400e6  # several times the L2 cache
_PEER = "torch bf16 matmul"


def bench_linears(
    device: torch.device, top: Ceilings, sweep: bool
) -> Iterator[tuple[Record, bool]]:
    """Each linear layer alone, and the sums of all; yields a record and whether it is a trial.

    Raises:
        SystemExit: a result is wrong.
    """
    totals = {tokens: [0.0, 0.0, 0.0, 0.0] for tokens in TOKENS}
    for name, (out, columns) in LINEARS.items():
        copies = max(2, min(64, int(_ROTATE_BYTES / (out * columns))))
        stored = [cases.fp8_weight(out, columns, device) for _ in range(copies)]
        packed = [kernel.pack(w) for w in stored]
        for tokens in TOKENS:
            x = cases.activations(tokens, columns, device)
            _check(name, kernel.linear_fp8(x, packed[0]), reference(x, stored[0]))
            some = slice(0, 2) if tokens > 256 else slice(None)
            peer = _peer_us(x, [_plain(w) for w in stored[some][:12]])
            floor, kind = out * columns * (1 + 1 / 1024) / top.read * 1e6, "weight read"
            if tokens > 64:
                floor, kind = 2 * tokens * out * columns / top.matmul * 1e6, "bf16 matmul"
            count = segments(out, columns)
            usual = choose(tokens, out, columns)
            trials = TRIALS[tokens] if sweep else ()
            for tile in (usual, *(other for other in trials if other != usual)):
                launches = [partial(kernel.launch, x, w, tile, count) for w in packed[some]]
                added = [partial(_added, run) for run in launches]
                whole, spread = graph_us(added)
                ours = whole
                if name in ADDED_BY_READER:
                    ours, spread = graph_us(launches)
                if tile == usual:
                    sums = zip(totals[tokens], (ours, floor, peer, whole), strict=True)
                    totals[tokens] = [total + part for total, part in sums]
                record = Record(
                    f"linear {name} T={tokens}", f"{out}x{columns}", ours, floor, kind, spread,
                    peer, _PEER, f"{list(tile)} segments {count}, added {whole:.1f}",
                )  # fmt: skip
                yield record, tile != usual
    for tokens, (ours, floor, peer, whole) in totals.items():
        name, shape = f"linears of a layer T={tokens}", "the five above"
        for label, time, note in (
            (name, ours, "as the model calls them"),
            (f"{name}, each adding its segments", whole, "two launches more than the model has"),
        ):
            yield Record(label, shape, time, floor, "sum of floors", 0.0, peer, _PEER, note), False


def _added(run: Callable[[], Tensor]) -> Tensor:
    return kernel.summed(run())


def _plain(weight: Any) -> Tensor:
    return dequantise_fp8_weight(weight).to(torch.bfloat16)


def _peer_us(x: Quantised, dense: list[Tensor]) -> float:
    plain = dequantise_fp8(x).to(torch.bfloat16)
    return graph_us([partial(torch.matmul, plain, w.mT) for w in dense])[0]


def _check(name: str, found: Tensor, wanted: Tensor) -> None:
    wide, true = found.double(), wanted.double()
    error = ((wide - true).norm() / true.norm()).item()
    if not error < 5e-3:
        raise SystemExit(f"linear {name}: relative error {error:.2e} is above 5e-3")
