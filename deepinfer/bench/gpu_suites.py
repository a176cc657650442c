"""What `bench gpu` measures: suites that yield a record and whether it is only a trial.

Random weights and inputs, made on the device; inputs rotate so that none stays in the cache. Knows
nothing of marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.bench.gpu_attention import bench_attention, bench_sampling
from deepinfer.bench.gpu_draft import bench_draft
from deepinfer.bench.gpu_index import bench_index
from deepinfer.bench.gpu_linears import bench_linears
from deepinfer.bench.gpu_others import bench_others
from deepinfer.bench.measure import Ceilings, Record, eager_us, graph_us
from deepinfer.ops.experts import ExpertWeights, experts
from deepinfer.ops.experts import triton as experts_kernels
from deepinfer.ops.experts.packing import pack as pack_experts
from deepinfer.ops.experts.plan import Tile, Tiles
from deepinfer.ops.experts.plan import choose as choose_tiles
from deepinfer.ops.experts.reference import plain_weight
from deepinfer.ops.formats import Fp4Weight, Quantised, dequantise_fp8
from deepinfer.ops.mhc_boundary import mhc_boundary
from deepinfer.ops.mhc_boundary import triton as mhc_kernels

HIDDEN, INNER, CHOICES, LIMIT = 5120, 2304, 6, 10.0
_ROTATE_BYTES = 400e6  # several times the L2 cache
Records = Iterator[tuple[Record, bool]]

# Experts, copies of the weights, tokens; 48 are a rank of EP8, 6 one of EP64.
EXPERTS = ((48, 1, (8, 64, 256, 4096)), (6, 4, (8, 64, 4096)))
# Other tiles worth a try, by experts and tokens.
EXPERT_TRIALS = {
    (48, 8): (Tiles(Tile(128, 16, 4, 6), Tile(128, 16, 4, 6), least=16),),
    (48, 64): (Tiles(Tile(128, 16, 4, 5), Tile(128, 16, 4, 5), least=16, overlap=True),),
    (48, 256): (
        Tiles(Tile(128, 32, 4, 4), Tile(128, 32, 4, 4), least=16, overlap=True),
        Tiles(Tile(128, 64, 8, 4, 128), Tile(128, 64, 8, 4, 128), least=16, overlap=True),
    ),
    (48, 4096): (
        Tiles(Tile(128, 64, 8, 4, 128), Tile(128, 64, 8, 4, 128), least=16, overlap=True),
    ),
    (6, 8): (Tiles(Tile(128, 16, 4, 8), Tile(128, 16, 4, 8), overlap=True),),
    (6, 64): (
        Tiles(Tile(128, 64, 4, 4), Tile(128, 64, 4, 4), overlap=True),
        Tiles(Tile(256, 64, 8, 7), Tile(256, 64, 8, 7), own=True),
    ),
    (6, 4096): (Tiles(Tile(128, 64, 8, 4, 128), Tile(128, 64, 8, 4, 128), least=16, overlap=True),),
}
_PLAN = mhc_kernels.PLAN
PLANS = (
    _PLAN._replace(few=0),
    _PLAN._replace(split_tokens=2),
)


def check(name: str, found: Tensor, wanted: Tensor, bound: float) -> None:
    """Stop the bench if a result is wrong.

    Raises:
        SystemExit: the relative error reaches `bound`.
    """
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


def _expert_cost(tokens: int, ids: Tensor, top: Ceilings) -> tuple[float, str]:
    """Reading each touched expert once, or the products if they take longer. In microseconds."""
    read = len(torch.unique(ids)) * 3 * HIDDEN * INNER * 17 / 32 / top.read * 1e6
    products = tokens * CHOICES * 6 * HIDDEN * INNER / top.matmul * 1e6
    if products > read:
        return products, f"bf16 matmul ({read:.1f} us to read the weights)"
    return read, "weight read"


def bench_experts(device: torch.device, top: Ceilings, sweep: bool) -> Records:
    """Routed experts of an EP8 (48) and an EP64 (6) rank."""
    for count, copies, sizes in EXPERTS:
        stored = [cases.expert_weights(count, HIDDEN, INNER, device) for _ in range(copies)]
        packed = [pack_experts(w) for w in stored]
        plain = _decoded_experts(stored[0])
        for tokens in sizes:
            x = cases.activations(tokens, HIDDEN, device)
            ids, share = cases.routing(tokens, count, CHOICES, device)
            if tokens <= 256:
                wanted = experts.reference(x, ids, share, stored[0], limit=LIMIT)
                found = experts_kernels.experts(x, ids, share, packed[0], limit=LIMIT)
                check(f"experts {count} {tokens}", found, wanted, 1e-2)
            peer, _ = graph_us([_grouped(x, ids, plain)], 4)
            floor, kind = _expert_cost(tokens, ids, top)
            usual = choose_tiles(tokens, CHOICES, count)
            trials = EXPERT_TRIALS[count, tokens] if sweep else ()
            for tiles in (usual, *trials):
                calls = [
                    partial(experts_kernels.launch, x, ids, share, w, LIMIT, tiles) for w in packed
                ]
                ours, spread = graph_us(calls)
                name = f"experts E={count} T={tokens}"
                note = str(tiles)
                record = Record(
                    name, f"{HIDDEN}/{INNER}, top-6", ours, floor, kind, spread,
                    peer, "two torch._grouped_mm bf16", note,
                )  # fmt: skip
                yield record, tiles is not usual


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


def bench_boundary(device: torch.device, top: Ceilings, sweep: bool) -> Records:
    """The step between two sub-layers."""
    stored = cases.hyper_weights(HIDDEN, device)
    packed = mhc_kernels.pack(stored)
    facts: dict[str, Any] = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20, "quantise": True}
    for tokens in (64, 1024):
        copies = max(2, int(_ROTATE_BYTES / (tokens * HIDDEN * 8)))
        inputs = [cases.boundary_inputs(tokens, HIDDEN, device) for _ in range(copies)]
        wanted = mhc_boundary.reference(*inputs[0], stored, **facts)
        found = mhc_kernels.mhc_boundary(*inputs[0], packed, **facts)
        check("mhc_boundary", found.hidden, wanted.hidden, 5e-3)
        peer = eager_us(partial(_eager_boundary, *inputs[0], stored, facts))
        floor = tokens * HIDDEN * 4 * 2 * 2 / top.copy * 1e6
        for plan in (_PLAN, *(PLANS if sweep else ())):
            calls = [
                partial(mhc_kernels.launch, *given, packed, *facts.values(), plan)
                for given in inputs
            ]
            ours, spread = graph_us(calls)
            record = Record(
                f"mhc_boundary T={tokens}", f"4 streams of {HIDDEN}", ours, floor,
                "streams read and written", spread, peer, "torch eager, fp32 sums", str([*plan]),
            )  # fmt: skip
            yield record, plan is not _PLAN


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


SUITES: dict[str, Callable[[torch.device, Ceilings, bool], Records]] = {
    "linears": bench_linears,
    "boundary": bench_boundary,
    "others": bench_others,
    "attention": bench_attention,
    "sampling": bench_sampling,
    "index": bench_index,
    "experts": bench_experts,
    "draft": bench_draft,
}
