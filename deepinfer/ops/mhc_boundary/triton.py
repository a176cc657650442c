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
from deepinfer.ops.mhc_boundary.plan import PLAN, SLICE, Plan, group_count
from deepinfer.ops.mhc_boundary.reference import Boundary, HyperWeights
from deepinfer.ops.mhc_boundary.triton_split import split
from deepinfer.ops.mhc_boundary.triton_tiles import tiles
from deepinfer.ops.mhc_update.reference import Pending

_STREAMS = 4
_COEFFICIENTS = 24  # (2 + m) m
_ROWS = 32  # the coefficients, padded, of one of the two terms of the projection


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
        pending: output of the sub-layer before, bf16, or None.
        pre: [tokens, 4] fp32.
        weights: what `pack` returned.
        eps: config key `rms_norm_eps`.
        hc_eps: config key `hc_eps`.
        iterations: config key `hc_sinkhorn_iters`.
        quantise: also return the FP8 pair of the normalised input.

    Raises:
        ValueError: streams or output are not bf16.
    """
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
    for given in (streams,) if pending is None else (streams, pending.output):
        if given.dtype != torch.bfloat16:
            raise ValueError(
                f"mhc_boundary: the kernels take bf16, not {given.dtype}; use reference"
            )
    tokens, _, hidden = streams.shape
    device, slices = streams.device, hidden // SLICE
    new = streams if pending is None else torch.empty_like(streams)
    out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
    codes = torch.empty((tokens, hidden), dtype=torch.uint8, device=device)
    scale = torch.empty((tokens, hidden // 32), dtype=torch.uint8, device=device)
    groups = group_count(hidden)
    few = tokens <= plan.few
    chunks = slices // groups if few else 1  # parts of a group
    squares = torch.empty((1 if few else groups, tokens), dtype=torch.float32, device=device)
    parts = torch.empty((groups * chunks, tokens, 2 * _ROWS), dtype=torch.float32, device=device)
    next_pre, post = torch.empty((2, tokens, _STREAMS), dtype=torch.float32, device=device)
    comb = torch.empty((tokens, _STREAMS, _STREAMS), dtype=torch.float32, device=device)
    y, old_post, old_comb = (streams, pre, pre) if pending is None else pending
    # Fused only where the kernels say so: the streams are the reference's bits.
    options = {"enable_fp_fusion": False, "launch_pdl": True}

    def splits() -> None:
        each, warps = (1, 4) if few else (plan.split_tokens, plan.split_warps)
        split[(triton.cdiv(tokens, each),)](
            parts, squares, weights.base, weights.scale, next_pre, post, comb, tokens, eps, hc_eps,
            _STREAMS * hidden, groups * chunks, chunks, len(squares), iterations, each, not few,
            num_warps=warps, launch_pdl=True,
        )  # fmt: skip

    if tokens and few:
        width = 16 if tokens <= plan.narrow else 32
        programs = tokens + triton.cdiv(tokens, width) * slices
        streams_kernels.advance_and_project[(programs,)](
            streams, y, old_post, old_comb, pre, weights.norm, weights.fn,
            new, out, codes, scale, squares, parts, tokens, eps,
            hidden, pending is not None, quantise, groups, width,
            num_warps=8 if tokens <= plan.eight else 4, **options,
        )  # fmt: skip
        splits()
    elif tokens:
        plain_squares = torch.empty_like(squares)
        tiles(
            streams, y, old_post, old_comb, pre, weights.fn,
            new, out, squares, plain_squares, parts, pending is not None,
        )  # fmt: skip
        streams_kernels.norm_input[(tokens,)](
            plain_squares, weights.norm, out, codes, scale, tokens, eps,
            hidden, quantise, groups, num_warps=4, **options,
        )  # fmt: skip
        splits()
    pair = Quantised(codes, scale) if quantise else None
    return Boundary(new, next_pre, post, comb, out, pair)


def refuses(
    *, arch: str, hidden: int, streams: int, quantised: bool, **_facts: object
) -> str | None:
    """None if these kernels serve, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    return refuses_sizes(hidden=hidden, streams=streams, quantised=quantised)


def refuses_sizes(*, hidden: int, streams: int, quantised: bool) -> str | None:
    """None if the kernels take a model of these sizes, else why not."""
    if not quantised:
        return "takes bf16 streams only"
    if streams != _STREAMS or hidden % 256:
        return f"{streams} streams of {hidden}; serves 4 streams, hidden a multiple of 256"
    return None
