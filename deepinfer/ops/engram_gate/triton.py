"""Engram gate in Triton, one stream of a token a program. Knows nothing of hashing or tables."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.engram_gate.reference import LEAST, EngramGate
from deepinfer.ops.portable import refuses_arch

_COLUMNS = 1024


@triton.jit(do_not_specialize=["eps", "root", "least"])
def _gate(
    x_ptr, kv_ptr, q_ptr, k_ptr, live_ptr, new_ptr, gate_ptr, eps, root, least,
    STREAMS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Stream and value stay in registers between the dot and the sum."""
    gdc_wait()
    gdc_launch_dependents()
    token, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x_ptr += (token * STREAMS + stream) * HIDDEN
    new_ptr += (token * STREAMS + stream) * HIDDEN
    kv_ptr += token * (STREAMS + 1) * HIDDEN
    dots = tl.zeros([COLUMNS], tl.float32)
    x_squares, key_squares = dots, dots
    kept = ()
    for first in tl.static_range(0, HIDDEN, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < HIDDEN
        x = tl.load(x_ptr + column, inside, 0.0)
        value = tl.load(kv_ptr + STREAMS * HIDDEN + column, inside, 0.0)
        kept = kept + ((x, value),)  # Triton has no list
        wide = x.to(tl.float32)
        key = tl.load(kv_ptr + stream * HIDDEN + column, inside, 0.0).to(tl.float32)
        weight = tl.load(q_ptr + stream * HIDDEN + column, inside, 0.0).to(tl.float32)
        weight *= tl.load(k_ptr + stream * HIDDEN + column, inside, 0.0).to(tl.float32)
        dots += wide * weight * key
        x_squares += wide * wide
        key_squares += key * key
    norm = tl.rsqrt(tl.sum(x_squares, 0) / HIDDEN + eps)
    norm *= tl.rsqrt(tl.sum(key_squares, 0) / HIDDEN + eps)
    dot = tl.sum(dots, 0) * norm * root
    size = tl.sqrt_rn(tl.maximum(tl.abs(dot), least))
    gate = tl.div_rn(1.0, 1 + tl.exp(tl.where(dot.to(tl.int32, bitcast=True) < 0, size, -size)))
    gate = tl.where(tl.load(live_ptr + token) != 0, gate, 0.0)
    tl.store(gate_ptr + token * STREAMS + stream, gate)
    for part in tl.static_range(0, (HIDDEN + COLUMNS - 1) // COLUMNS):
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        new = kept[part][0].to(tl.float32) + gate * kept[part][1].to(tl.float32)
        tl.store(new_ptr + column, new.to(tl.bfloat16), column < HIDDEN)


def engram_gate(
    streams: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, live: Tensor, *, eps: float
) -> EngramGate:
    """As the reference, for bf16 streams and `kv`, contiguous.

    Raises:
        ValueError: the streams or `kv` are not bf16.
    """
    if streams.dtype != torch.bfloat16 or kv.dtype != torch.bfloat16:
        raise ValueError(f"engram_gate: {streams.dtype} streams and {kv.dtype}; use reference")
    tokens, m, hidden = streams.shape
    new = torch.empty_like(streams)
    gate = torch.empty((tokens, m), dtype=torch.float32, device=streams.device)
    if tokens:
        _gate[(tokens, m)](
            streams, kv, q_weight, k_weight, live, new, gate, eps, hidden**-0.5, LEAST,
            m, hidden, _COLUMNS, num_warps=4, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return EngramGate(new, gate)


def pack(weights: Any) -> Any:
    """The gains are used as they are."""
    return weights


def refuses(*, arch: str, quantised: bool, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    return None if quantised else "takes bf16 streams only"
