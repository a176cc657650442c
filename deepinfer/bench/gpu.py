"""Bench of the GPU kernels: `python -m deepinfer.bench.gpu --json result.json [--only NAME]`.

Each line compares ours with a floor and a peer of the same run. Correctness is the business of
`tests/gpu`; here a wrong result only stops the line. Knows nothing of the engine.
"""

from __future__ import annotations

import argparse
import json as json_text
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.bench.measure import Ceilings, Record, ceilings, eager_us, environment, graph_us
from deepinfer.device import find_device
from deepinfer.errors import ConfigError
from deepinfer.ops.experts import ExpertWeights, experts
from deepinfer.ops.experts import triton as experts_kernels
from deepinfer.ops.experts.packing import pack as pack_experts
from deepinfer.ops.experts.plan import Tile, Tiles
from deepinfer.ops.experts.plan import choose as choose_tiles
from deepinfer.ops.experts.reference import plain_weight
from deepinfer.ops.formats import Fp4Weight, Quantised, dequantise_fp8
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.linear_fp8 import plan as linear_plan
from deepinfer.ops.linear_fp8 import triton as linear_kernel
from deepinfer.ops.mhc_boundary import mhc_boundary
from deepinfer.ops.mhc_boundary import triton as mhc_kernels

HIDDEN, INNER, CHOICES, LIMIT = 5120, 2304, 6, 10.0
_ROTATE_BYTES = 400e6  # several times the L2 cache
EXPERTS = ((48, 1, (8, 32, 64, 256, 1024, 4096)), (6, 4, (8, 64, 4096)), (384, 1, (64,)))
LINEARS = {
    "wq_a": (1280, 5120),
    "wq_b": (32768, 1280),
    "wkv": (512, 5120),
    "wo_b": (5120, 8192),
    "shared w13": (4608, 5120),
    "shared w2": (5120, 2304),
}


def _check(name: str, found: Tensor, wanted: Tensor, bound: float) -> None:
    wide, true = found.double(), wanted.double()
    error = ((wide - true).norm() / true.norm()).item()
    if not error < bound:
        raise SystemExit(f"{name}: relative error {error:.2e} is above {bound:.0e}")


def _grouped(x: Quantised, ids: Tensor, weights: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """The two bare products of the routed experts by torch, on sorted bf16 rows."""
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=len(weights[0])).cumsum(0).to(torch.int32)
    rows = dequantise_fp8(x).to(torch.bfloat16)[order // ids.shape[1]]
    w13, w2 = (w.mT for w in weights)

    inner = torch.randn((len(rows), w2.shape[1]), device=rows.device).to(torch.bfloat16)

    product = torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]

    def run() -> Tensor:
        product(rows, w13, offs=ends)
        return product(inner, w2, offs=ends)

    return run


def _expert_cost(tokens: int, count: int, ids: Tensor, top: Ceilings) -> tuple[float, str]:
    """Larger of reading each touched expert once and of the products, in microseconds."""
    touched = len(torch.unique(ids))
    read = touched * 3 * HIDDEN * INNER * 17 / 32 / top.read * 1e6
    work = tokens * CHOICES * 6 * HIDDEN * INNER / top.matmul * 1e6
    return (read, "weight read") if read > work else (work, "bf16 matmul")


def bench_experts(device: torch.device, top: Ceilings, sweep: bool) -> Iterator[Record]:
    """Routed experts of an EP8 (48) and an EP64 (6) rank, and of one whole layer."""
    for count, copies, sizes in EXPERTS:
        stored = [cases.expert_weights(count, HIDDEN, INNER, device) for _ in range(copies)]
        packed = [pack_experts(w) for w in stored]
        plain = _decoded_experts(stored[0])
        for tokens in sizes:
            x = cases.activations(tokens, HIDDEN, device)
            ids, share = cases.routing(tokens, count, CHOICES, device)
            if tokens <= 64:
                wanted = experts.reference(x, ids, share, stored[0], limit=LIMIT)
                found = experts_kernels.experts(x, ids, share, packed[0], limit=LIMIT)
                _check(f"experts {count} {tokens}", found, wanted, 5e-3)
            peer, _ = graph_us([_grouped(x, ids, plain)], 4)
            floor, kind = _expert_cost(tokens, count, ids, top)
            for tiles in _tiles(tokens, count, sweep):
                calls = [
                    partial(experts_kernels.launch, x, ids, share, w, LIMIT, tiles) for w in packed
                ]
                ours, spread = graph_us(calls)
                yield Record(
                    "experts", f"E={count} T={tokens}", ours, floor, kind, spread,
                    peer, "two torch._grouped_mm bf16", str([*map(list, tiles)]),
                )  # fmt: skip


def _decoded_experts(weights: ExpertWeights) -> tuple[Tensor, Tensor]:
    """bf16 copies of both matrices, expert by expert to bound the fp32 in between."""
    parts: list[Tensor] = []
    for weight in weights:
        assert isinstance(weight, Fp4Weight)
        rows = [
            plain_weight(Fp4Weight(c, s)).to(torch.bfloat16)
            for c, s in zip(weight.codes, weight.scale, strict=True)
        ]
        parts.append(torch.stack(rows))
    return parts[0], parts[1]


def _tiles(tokens: int, count: int, sweep: bool) -> list[Tiles]:
    usual = choose_tiles(tokens, CHOICES, count)
    tried = SWEEP.get(tokens * CHOICES // count, ()) if sweep else ()
    return [usual, *(pair for pair in (Tiles(t, t) for t in tried) if pair != usual)]


# Other tiles worth a try, by pairs an expert.
SWEEP = {
    1: (Tile(128, 16, 4, 5),),
    8: (Tile(128, 16, 4, 6), Tile(64, 16, 4, 8), Tile(64, 16, 4, 5)),
    32: (Tile(128, 64, 4, 2), Tile(128, 64, 8, 3)),
    64: (Tile(128, 64, 8, 3), Tile(64, 64, 4, 4)),
    128: (Tile(128, 64, 4, 2),),
    4096: (Tile(256, 128, 8, 2),),
}


def bench_linears(device: torch.device, top: Ceilings, sweep: bool) -> Iterator[Record]:
    """FP8 linear layers of one transformer layer, each alone and all in a row."""
    for tokens in (8, 64, 4096):
        total, floor_total, peer_total = 0.0, 0.0, 0.0
        for name, (out, columns) in LINEARS.items():
            copies = max(2, min(64, int(_ROTATE_BYTES / (out * columns)))) if tokens <= 64 else 2
            stored = [cases.fp8_weight(out, columns, device) for _ in range(copies)]
            packed = [linear_kernel.pack(w) for w in stored]
            x = cases.activations(tokens, columns, device)
            wanted = linear_fp8.reference(x, stored[0])
            _check(name, linear_kernel.linear_fp8(x, packed[0]), wanted, 5e-3)
            plain = dequantise_fp8(x).to(torch.bfloat16)
            dense = [plain_weight(w).to(torch.bfloat16) for w in stored[: max(2, copies // 2)]]
            peer, _ = graph_us([partial(torch.matmul, plain, w.mT) for w in dense])
            read = out * columns * (1 + 1 / 1024) / top.read * 1e6
            work = 2 * tokens * out * columns / top.matmul * 1e6
            floor, kind = (read, "weight read") if read > work else (work, "bf16 matmul")
            usual, count = linear_plan.choose(tokens), linear_plan.segments(out, columns)
            for tile, segments in _linear_plans(usual, count, columns, sweep):
                calls = [partial(linear_kernel.launch, x, w, tile, segments) for w in packed]
                ours, spread = graph_us(calls)
                if (tile, segments) == (usual, count):
                    total, peer_total = total + ours, peer_total + peer
                    floor_total += floor
                yield Record(
                    f"linear {name}", f"{out}x{columns} T={tokens}", ours, floor, kind,
                    spread, peer, "torch bf16 matmul", f"{list(tile)} segments {segments}",
                )  # fmt: skip
        yield Record(
            "linear, one layer", f"all six T={tokens}", total, floor_total, "sum of floors", 0.0,
            peer_total, "torch bf16 matmul", "sum of the lines above",
        )  # fmt: skip


def _linear_plans(
    usual: linear_plan.Tile, count: int, columns: int, sweep: bool
) -> list[tuple[linear_plan.Tile, int]]:
    found = [(usual, count)]
    if sweep and usual in LINEAR_SWEEP:
        steps = columns // 128
        near = [n for n in range(1, steps + 1) if steps % n == 0 and count / 2 <= n <= 2 * count]
        found += [(usual, n) for n in near if n != count]
        found += [(tile, count) for tile in LINEAR_SWEEP[usual]]
    return found


# Other tiles worth a try, by the usual one.
LINEAR_SWEEP = {
    linear_plan.choose(8): (linear_plan.Tile(64, 16, 4, 4), linear_plan.Tile(64, 16, 4, 7)),
    linear_plan.choose(64): (linear_plan.Tile(64, 64, 4, 4), linear_plan.Tile(64, 64, 4, 3, 168)),
}


def bench_boundary(device: torch.device, top: Ceilings, _sweep: bool) -> Iterator[Record]:
    """The step between two sub-layers."""
    stored = cases.hyper_weights(HIDDEN, device)
    packed = mhc_kernels.pack(stored)
    facts: dict[str, Any] = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20, "quantise": True}
    for tokens in (64, 1024):
        copies = max(2, int(_ROTATE_BYTES / (tokens * HIDDEN * 8)))
        inputs = [cases.boundary_inputs(tokens, HIDDEN, device) for _ in range(copies)]
        wanted = mhc_boundary.reference(*inputs[0], stored, **facts)
        found = mhc_kernels.mhc_boundary(*inputs[0], packed, **facts)
        _check("mhc_boundary", found.hidden, wanted.hidden, 5e-3)
        peer = eager_us(partial(_eager_boundary, *inputs[0], stored, facts))
        calls = [partial(mhc_kernels.mhc_boundary, *given, packed, **facts) for given in inputs]
        ours, spread = graph_us(calls)
        floor = tokens * HIDDEN * 4 * 2 * 2 / top.copy * 1e6
        yield Record(
            "mhc_boundary", f"T={tokens}", ours, floor, "streams read and written", spread,
            peer, "torch eager, fp32 sums",
        )  # fmt: skip


def _eager_boundary(
    streams: Tensor, pending: Any, pre: Tensor, weights: Any, facts: dict[str, Any]
) -> Tensor:
    """The same step in plain torch with fp32 sums (the reference's fp64 would flatter us)."""
    from deepinfer.ops.formats import quantise_fp8
    from deepinfer.ops.mhc_boundary import split_coefficients
    from deepinfer.ops.mhc_update.reference import mhc_update

    streams = mhc_update(streams, pending)
    flat = streams.flatten(1).float()
    norm = torch.rsqrt(flat.square().mean(-1, keepdim=True) + facts["eps"])
    split_coefficients(flat @ weights.fn.T * norm, weights, facts["iterations"], facts["hc_eps"])
    plain = (streams.float() * pre.unsqueeze(-1)).sum(1).to(torch.bfloat16).float()
    normed = plain * torch.rsqrt(plain.square().mean(-1, keepdim=True) + facts["eps"])
    return quantise_fp8((weights.norm * normed).to(torch.bfloat16)).codes


SUITES = {"experts": bench_experts, "linears": bench_linears, "boundary": bench_boundary}


def run(
    *, json: bool = False, only: Sequence[str] = (), sweep: bool = False, commit: str = ""
) -> list[dict[str, object]]:
    """Run suites on the first GPU, printing each record as it comes.

    Args:
        json: print one JSON object a record instead of a table.
        only: names of `SUITES`; empty = all.
        sweep: also time other tiles.
        commit: written into every record.

    Returns:
        The records, with ceilings, hardware and versions.

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
            for record in SUITES[name](device.torch, top, sweep):
                found.append(record.row() | common)
                print(json_text.dumps(found[-1]) if json else _line(record), flush=True)
    return found


def _line(record: Record) -> str:
    row = record.row()
    speedup = f"{row['speedup']:5.2f}x" if row["speedup"] else "     -"
    return (
        f"{record.name:20s} {record.shape:22s} {record.ours_us:9.1f} us  floor "
        f"{row['of_floor']:.2f} ({record.floor})  peer {speedup}  "
        f"spread {record.spread:.3f}  {record.note}"
    )


def main() -> None:
    """`python -m deepinfer.bench.gpu`: the suites with more choices than the command line has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the records, one a line")
    parser.add_argument("--only", choices=sorted(SUITES), action="append", help="suites to run")
    parser.add_argument("--sweep", action="store_true", help="also time other tiles")
    parser.add_argument("--commit", default="", help="written into every record")
    args = parser.parse_args()
    found = run(only=args.only or (), sweep=args.sweep, commit=args.commit)
    if args.json:
        args.json.write_text("".join(json_text.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main()
