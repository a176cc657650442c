"""Stream collapse and norm in TileLang, one program a token. Knows no sub-layer."""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportInvalidTypeForm=false

from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.mhc_collapse.reference import Collapsed
from deepinfer.ops.tilelang_dialects import Dialect, launch, threads_of


def describe(
    dialect: Dialect, *, count: int, width: int, eps: float, dtype: torch.dtype, norm: torch.dtype
) -> Any:
    """streams [tokens, count, width], pre [tokens, count] -> plain, normed [tokens, width]."""
    T = dialect.language
    tokens, stored, threads = T.dynamic("tokens"), dialect.stored(dtype), threads_of(width)
    gain_as = dialect.stored(norm)

    @T.prim_func
    def mhc_collapse(
        streams: T.Tensor((tokens, count, width), stored),
        pre: T.Tensor((tokens, count), "float32"),
        norm: T.Tensor((width,), gain_as),
        plain: T.Tensor((tokens, width), stored),
        normed: T.Tensor((tokens, width), stored),
    ):
        with dialect.launch(tokens, threads) as token:
            rows = dialect.tile((count, width), stored)
            gain = dialect.tile((width,), gain_as)
            total = dialect.tile((width,), "float32")
            square = dialect.tile((width,), "float32")
            squares = dialect.tile((1,), "float32")
            once = dialect.tile((width,), stored)
            twice = dialect.tile((width,), stored)
            T.copy(streams[token, 0:count, 0:width], rows)
            T.copy(norm, gain)
            with dialect.vector(threads):
                for i in T.Parallel(width):
                    total[i] = T.float32(0)
                for k in T.unroll(count):
                    for i in T.Parallel(width):
                        part = pre[token, k] * dialect.widened(rows[k, i])
                        total[i] = total[i] + part
                for i in T.Parallel(width):
                    once[i] = dialect.rounded(total[i], stored)
                for i in T.Parallel(width):
                    square[i] = dialect.widened(once[i]) * dialect.widened(once[i])
                dialect.sum_of(square, squares)
                for i in T.Parallel(width):
                    size = T.rsqrt(squares[0] / T.float32(width) + T.float32(eps))
                    value = dialect.widened(once[i]) * size
                    twice[i] = dialect.rounded(dialect.widened(gain[i]) * value, stored)
            T.copy(once, plain[token, 0:width])
            T.copy(twice, normed[token, 0:width])

    return mhc_collapse


def mhc_collapse(streams: Tensor, pre: Tensor, norm: Tensor, eps: float) -> Collapsed:
    """As the reference; the sum of squares runs in fp32."""
    tokens, count, width = streams.shape
    plain, normed = streams.new_empty((2, tokens, width))
    if tokens:
        launch(
            describe, streams, pre, norm, plain, normed,
            count=count, width=width, eps=eps, dtype=streams.dtype, norm=norm.dtype,
        )  # fmt: skip
    return Collapsed(plain, normed)


def pack(weights: Any) -> Any:
    """There are none."""
    return weights
