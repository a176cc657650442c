"""Embeddings as residual streams in one Triton launch. Knows no blocks."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.embed_streams.reference import Embedded
from deepinfer.ops.portable import refuses_arch

_BLOCK = 1024


@triton.jit(do_not_specialize=["step", "vocab"])
def _embed(
    id_ptr, table_ptr, stream_ptr, pre_ptr, step, vocab,
    WIDTH: tl.constexpr, STREAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of all streams of one token."""
    gdc_wait()
    gdc_launch_dependents()
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    found = tl.load(id_ptr + token * step)
    found = tl.where(found < 0, found + vocab, found)  # as an index of the reference
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(table_ptr + found * WIDTH + column, inside, 0.0)
    for stream in tl.static_range(STREAMS):
        at = stream_ptr + (token * STREAMS + stream) * WIDTH + column
        tl.store(at, value.to(stream_ptr.dtype.element_ty), inside)
        if part == 0:
            tl.store(pre_ptr + token * STREAMS + stream, 1.0 if stream == 0 else 0.0)


def embed_streams(ids: Tensor, table: Tensor, *, streams: int, dtype: torch.dtype) -> Embedded:
    """As the reference."""
    tokens, (vocab, width) = len(ids), table.shape
    out = torch.empty((tokens, streams, width), dtype=dtype, device=ids.device)
    pre = torch.empty((tokens, streams), dtype=torch.float32, device=ids.device)
    if tokens:
        _embed[(tokens, triton.cdiv(width, _BLOCK))](
            ids, table, out, pre, ids.stride(0), vocab, width, streams, _BLOCK,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return Embedded(out, pre)


def pack(weights: Tensor) -> Tensor:
    """The table as it is."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
