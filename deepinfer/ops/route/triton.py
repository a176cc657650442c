"""Expert choice in Triton: the gate's product in fixed segments, then one program a token."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.route.reference import Routing
from deepinfer.ops.triton_product import parts, refuses_plain


@triton.jit(do_not_specialize=["tokens", "bias_step", "scaling"])
def _choose(
    part_ptr, bias_ptr, idx_ptr, weight_ptr, tokens, bias_step, scaling,
    EXPERTS: tl.constexpr, SIZE: tl.constexpr, SEGMENTS: tl.constexpr, TOPK: tl.constexpr,
):  # fmt: skip
    """Scores, top-k (ties to the lowest expert) and weights of one token."""
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, SIZE)
    inside = expert < EXPERTS
    logit = tl.zeros([SIZE], tl.float32)
    for s in tl.static_range(SEGMENTS):
        logit += tl.load(part_ptr + (s * tokens + token) * EXPERTS + expert, inside, 0.0)
    # softplus, linear above 20; of a small e = exp(logit), where 1 + e rounds, by its series.
    grown = tl.exp(tl.minimum(logit, 20.0))
    near = grown * (1 - grown * (0.5 - grown * 0.33333334))
    curved = tl.where(grown < 0.01, near, tl.log(1 + grown))
    score = tl.sqrt_rn(tl.where(logit > 20.0, logit, curved))
    biased = score + tl.load(bias_ptr + token * bias_step + expert, inside, 0.0)
    biased = tl.where(inside, biased, float("-inf"))
    rank = tl.arange(0, triton.next_power_of_2(TOPK))
    ids = tl.zeros([triton.next_power_of_2(TOPK)], tl.int32)
    chosen = tl.zeros([triton.next_power_of_2(TOPK)], tl.float32)
    total = 0.0
    for r in tl.static_range(TOPK):
        best = tl.max(biased, 0)
        first = tl.min(tl.where(biased == best, expert, SIZE), 0)
        value = tl.sum(tl.where(expert == first, score, 0.0), 0)
        ids = tl.where(rank == r, first, ids)
        chosen = tl.where(rank == r, value, chosen)
        total += value
        biased = tl.where(expert == first, float("-inf"), biased)
    at = token * TOPK + rank
    tl.store(idx_ptr + at, ids.to(tl.int64), rank < TOPK)
    tl.store(weight_ptr + at, chosen / (total + 1e-20) * scaling, rank < TOPK)


def route(hidden: Tensor, gate: Tensor, bias: Tensor, *, topk: int, scaling: float) -> Routing:
    """As the reference, for bf16 `hidden` and gate; scores that differ in the last bits may swap
    neighbours of nearly equal score."""
    sums = parts(hidden.contiguous(), gate)
    count, tokens, experts = sums.shape
    ids = torch.empty((tokens, topk), dtype=torch.int64, device=sums.device)
    weights = torch.empty((tokens, topk), dtype=torch.float32, device=sums.device)
    if tokens:
        _choose[(tokens,)](
            sums, bias.contiguous(), ids, weights, tokens, experts if bias.dim() == 2 else 0,
            scaling, experts, triton.next_power_of_2(experts), count, topk,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return Routing(ids, weights)


def pack(gate: Tensor) -> Tensor:
    """The gate as it is.

    Raises:
        ValueError: it is not bf16.
    """
    if gate.dtype != torch.bfloat16:
        raise ValueError(f"route: the triton kernel takes a bf16 gate, not {gate.dtype}")
    return gate.contiguous()


def refuses(*, arch: str, quantised: bool, hidden: int, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    return refuses_plain(arch=arch, quantised=quantised, hidden=hidden)
