"""The mean of the streams in TileLang, some columns of a token a program. Knows no layers."""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportInvalidTypeForm=false

from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.tilelang_dialects import Dialect, block_of, launch, threads_of


def describe(dialect: Dialect, *, count: int, width: int, dtype: torch.dtype) -> Any:
    """streams [tokens, count, width] -> out [tokens, width], both of `dtype`."""
    T = dialect.language
    tokens, stored, block = T.dynamic("tokens"), dialect.stored(dtype), block_of(width)
    blocks, threads = width // block, threads_of(block)

    @T.prim_func
    def stream_mean(
        streams: T.Tensor((tokens, count, width), stored),
        out: T.Tensor((tokens, width), stored),
    ):
        with dialect.launch(tokens * blocks, threads) as place:
            token = place // blocks
            first = place % blocks * block
            rows = dialect.tile((count, block), stored)
            total = dialect.tile((block,), "float32")
            mean = dialect.tile((block,), stored)
            T.copy(streams[token, 0:count, first : first + block], rows)
            with dialect.vector(threads):
                for i in T.Parallel(block):
                    total[i] = T.float32(0)
                for k in T.unroll(count):
                    for i in T.Parallel(block):
                        total[i] = total[i] + dialect.widened(rows[k, i])
                for i in T.Parallel(block):
                    mean[i] = dialect.rounded(total[i] / T.float32(count), stored)
            T.copy(mean, out[token, first : first + block])

    return stream_mean


def stream_mean(streams: Tensor) -> Tensor:
    """As the reference."""
    tokens, count, width = streams.shape
    out = streams.new_empty((tokens, width))
    if out.numel():
        launch(describe, streams, out, count=count, width=width, dtype=streams.dtype)
    return out


def pack(weights: Any) -> Any:
    """There is nothing to pack."""
    return weights
