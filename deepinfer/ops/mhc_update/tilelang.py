"""Residual-stream update in TileLang, some columns of a token a program. Knows no weights."""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportInvalidTypeForm=false

from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.tilelang_dialects import Dialect, block_of, launch, threads_of


def describe(
    dialect: Dialect, *, count: int, width: int, dtype: torch.dtype, output: torch.dtype
) -> Any:
    """The reference's sums in its order: first the mix of the old streams, then the output."""
    T = dialect.language
    tokens, stored, block = T.dynamic("tokens"), dialect.stored(dtype), block_of(width)
    blocks, threads = width // block, threads_of(block)
    added_as = dialect.stored(output)

    @T.prim_func
    def mhc_update(
        streams: T.Tensor((tokens, count, width), stored),
        output: T.Tensor((tokens, width), added_as),
        post: T.Tensor((tokens, count), "float32"),
        comb: T.Tensor((tokens, count, count), "float32"),
        out: T.Tensor((tokens, count, width), stored),
    ):
        with dialect.launch(tokens * blocks, threads) as place:
            token = place // blocks
            first = place % blocks * block
            old = dialect.tile((count, block), stored)
            added = dialect.tile((block,), added_as)
            mixed = dialect.tile((count, block), "float32")
            rows = dialect.tile((count, block), stored)
            T.copy(streams[token, 0:count, first : first + block], old)
            T.copy(output[token, first : first + block], added)
            with dialect.vector(threads):
                for k, i in T.Parallel(count, block):
                    mixed[k, i] = T.float32(0)
                for j in T.unroll(count):
                    for k, i in T.Parallel(count, block):
                        part = comb[token, j, k] * dialect.widened(old[j, i])
                        mixed[k, i] = mixed[k, i] + part
                for k, i in T.Parallel(count, block):
                    own = post[token, k] * dialect.widened(added[i])
                    rows[k, i] = dialect.rounded(own + mixed[k, i], stored)
            T.copy(rows, out[token, 0:count, first : first + block])

    return mhc_update


def mhc_update(streams: Tensor, pending: Pending) -> Tensor:
    """As the reference."""
    tokens, count, width = streams.shape
    new = torch.empty_like(streams)
    if tokens:
        launch(
            describe, streams, *pending, new,
            count=count, width=width, dtype=streams.dtype, output=pending.output.dtype,
        )  # fmt: skip
    return new


def pack(weights: Any) -> Any:
    """There are none."""
    return weights
