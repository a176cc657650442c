"""The step between two sub-layers on Hopper, in two launches for few tokens, three for many.

New streams and the sub-layer's input come first; the coefficients, which nothing needs before the
sub-layer is done, from a product of the new streams with the projection, in fixed slices of K, and
the splitting of its sums. Knows nothing of attention or experts. Meaning: reference.py.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from deepinfer.ops.formats import Quantised
from deepinfer.ops.mhc_boundary import triton_streams as streams_kernels
from deepinfer.ops.mhc_boundary.reference import Boundary, HyperWeights
from deepinfer.ops.mhc_boundary.triton_split import split
from deepinfer.ops.mhc_update.reference import Pending

_STREAMS = 4
_COEFFICIENTS = 24  # (2 + m) m
_ROWS = 32  # the coefficients, padded, of one of the two terms of the projection
_COLUMNS = 1024  # of a part of a token; with the warps it fixes the order of sums of squares
_WARPS = 8
_SLICE = 256  # columns of K that are summed by themselves
_GROUPS = (5, 4)  # slices whose sums are added before the others: the first that divides them


class Plan(NamedTuple):
    """How the kernels cut their work; none of it changes a bit.

    few: most tokens that one launch advances and projects; narrow: most of them for which its
    slices are of 16 tokens, not of 32. alone: most tokens for which a slice is a program, not a
    group of slices. registers: bound for a thread where each token is a program,
    so that a fourth one fits on a multiprocessor. step, stages, warps, tokens: of the loop that
    projects many tokens. split_tokens, split_warps: of the program that splits those of many.
    """

    few: int = 128
    narrow: int = 64
    alone: int = 256
    registers: int | None = 64
    step: int = 64
    stages: int = 4
    warps: int = 4
    tokens: int = 64
    split_tokens: int = 2
    split_warps: int = 1


PLAN = Plan()  # measured on one H200 (docs/kernels.md)


class PackedHyper(NamedTuple):
    """Weights of one boundary; `fn` as two bf16 terms of 32 rows each, 24 of them used.

    fn [64, 4 * hidden] bf16, together 16 bits of mantissa; base [24], scale [3], norm [hidden],
    all three fp32.
    """

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


def pack(weights: HyperWeights) -> PackedHyper:
    """Split the fp32 projection into a high and a low bf16 term, for bf16 products summed in fp32.

    Raises:
        ValueError: other than 4 streams.
    """
    if weights.fn.shape[0] != _COEFFICIENTS:
        raise ValueError(
            f"mhc_boundary: {weights.fn.shape[0]} coefficients; the kernels take 24 (4 streams)"
        )
    full = torch.nn.functional.pad(weights.fn.float(), (0, 0, 0, _ROWS - _COEFFICIENTS))
    high = full.to(torch.bfloat16)
    fn = torch.cat((high, (full - high.float()).to(torch.bfloat16)))
    fn[-1, -1].item()  # waits for the copy: the kernels read weights early
    return PackedHyper(
        fn,
        weights.base.float().contiguous(),
        weights.scale.float().contiguous(),
        weights.norm.float().contiguous(),
    )


def mhc_boundary(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: PackedHyper,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
) -> Boundary:
    """As the reference, with packed weights.

    Args:
        streams: [tokens, 4, hidden] bf16, contiguous, as are the tensors of `pending` and `pre`.
        pending: output (bf16 or fp32) of the sub-layer before, or None.
        pre: [tokens, 4] fp32.
        weights: what `pack` returned.
        eps: config key `rms_norm_eps`.
        hc_eps: config key `hc_eps`.
        iterations: config key `hc_sinkhorn_iters`.
        quantise: also return the FP8 pair of the normalised input.

    Raises:
        ValueError: the streams are not bf16.
    """
    if streams.dtype != torch.bfloat16:
        raise ValueError(f"mhc_boundary: streams are {streams.dtype}; use reference")
    return launch(streams, pending, pre, weights, eps, hc_eps, iterations, quantise, PLAN)


def launch(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: PackedHyper,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
    plan: Plan,
) -> Boundary:
    """The kernels with a given plan; the rest as in `mhc_boundary`."""
    tokens, _, hidden = streams.shape
    device, flat = streams.device, _STREAMS * hidden
    new = streams if pending is None else torch.empty_like(streams)
    out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
    codes = torch.empty((tokens, hidden), dtype=torch.uint8, device=device)
    scale = torch.empty((tokens, hidden // 32), dtype=torch.uint8, device=device)
    square = torch.empty(tokens, dtype=torch.float32, device=device)
    slices = flat // _SLICE
    group = next(g for g in _GROUPS if slices % g == 0)
    one = tokens <= max(plan.few, plan.alone)  # slice a program
    together = 1 if one else group
    parts = torch.empty((slices // together, tokens, 2 * _ROWS), dtype=torch.float32, device=device)
    next_pre, post = torch.empty((2, tokens, _STREAMS), dtype=torch.float32, device=device)
    comb = torch.empty((tokens, _STREAMS, _STREAMS), dtype=torch.float32, device=device)
    y, old_post, old_comb = (streams, pre, pre) if pending is None else pending
    given = (streams, y, old_post, old_comb, pre, weights.norm)
    made = (new, out, codes, scale, square)
    facts = (hidden, pending is not None, quantise, _COLUMNS)
    # Fused only where the kernels say so: the streams are the reference's bits.
    options = {"num_warps": _WARPS, "enable_fp_fusion": False, "launch_pdl": True}
    if not tokens:
        pass
    elif tokens <= plan.few:
        width = 16 if tokens <= plan.narrow else 32
        streams_kernels.advance_and_project[(tokens + triton.cdiv(tokens, width) * slices,)](
            *given, weights.fn, *made, parts, tokens, eps, *facts, _SLICE, width, **options
        )
    else:
        streams_kernels.advance[(tokens,)](
            *given, *made, eps, *facts, maxnreg=plan.registers, **options
        )
        streams_kernels.project[(triton.cdiv(tokens, plan.tokens), len(parts))](
            new, weights.fn, parts, tokens, flat, plan.tokens, _SLICE, together, plan.step,
            num_warps=plan.warps, num_stages=plan.stages, launch_pdl=True,
        )  # fmt: skip
    if tokens:
        each, warps = (1, 4) if one else (plan.split_tokens, plan.split_warps)
        split[(triton.cdiv(tokens, each),)](
            parts, square, weights.base, weights.scale, next_pre, post, comb, tokens, eps, hc_eps,
            flat, len(parts), group // together, iterations, each,
            num_warps=warps, launch_pdl=True,
        )  # fmt: skip
    pair = Quantised(codes, scale) if quantise else None
    return Boundary(new, next_pre, post, comb, out, pair)


def refuses(
    *, arch: str, hidden: int, streams: int, quantised: bool, **_facts: object
) -> str | None:
    """None if these kernels serve, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes bf16 streams only"
    if streams != _STREAMS or hidden % _SLICE:
        return f"{streams} streams of {hidden}; serves 4 streams, hidden a multiple of {_SLICE}"
    return None
