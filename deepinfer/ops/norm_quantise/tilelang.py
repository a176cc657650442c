"""RMSNorm and FP8 quantisation in TileLang, one program a row. Knows no product."""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportInvalidTypeForm=false

from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.formats import FP8_GROUP, Quantised
from deepinfer.ops.norm_quantise.reference import Normed
from deepinfer.ops.tilelang_dialects import (
    Dialect,
    e4m3,
    launch,
    power_of_two,
    scale_byte,
    threads_of,
)
from deepinfer.ops.tilelang_refusals import width_of_groups

_FLOOR = 1e-4  # as in `formats.quantise_fp8`, which defines the bits


def describe(
    dialect: Dialect, *, groups: int, eps: float, dtype: torch.dtype, norm: torch.dtype
) -> Any:
    """x [tokens, groups, 32] -> hidden, codes of that shape, scale [tokens, groups]."""
    T = dialect.language
    tokens, stored = T.dynamic("tokens"), dialect.stored(dtype)
    gain_as, width, threads = (
        dialect.stored(norm),
        groups * FP8_GROUP,
        threads_of(groups * FP8_GROUP),
    )
    shape = groups, FP8_GROUP

    @T.prim_func
    def norm_quantise(
        x: T.Tensor((tokens, *shape), stored),
        weight: T.Tensor(shape, gain_as),
        hidden: T.Tensor((tokens, *shape), stored),
        codes: T.Tensor((tokens, *shape), "uint8"),
        scale: T.Tensor((tokens, groups), "uint8"),
    ):
        with dialect.launch(tokens, threads) as token:
            row = dialect.tile(shape, stored)
            gain = dialect.tile(shape, gain_as)
            square = dialect.tile((width,), "float32")
            squares = dialect.tile((1,), "float32")
            normed = dialect.tile(shape, stored)
            value = dialect.tile(shape, "float32")
            largest = dialect.tile((groups,), "float32")
            size = dialect.tile((groups,), "int32")
            size_byte = dialect.tile((groups,), "uint8")
            code = dialect.tile(shape, "uint8")
            T.copy(x[token, 0:groups, 0:FP8_GROUP], row)
            T.copy(weight, gain)
            with dialect.vector(threads):
                for g, i in T.Parallel(*shape):
                    square[g * FP8_GROUP + i] = dialect.widened(row[g, i]) * dialect.widened(
                        row[g, i]
                    )
                dialect.sum_of(square, squares)
                for g, i in T.Parallel(*shape):
                    inverse = T.rsqrt(squares[0] / T.float32(width) + T.float32(eps))
                    one = dialect.widened(row[g, i]) * inverse
                    normed[g, i] = dialect.rounded(dialect.widened(gain[g, i]) * one, stored)
                for g, i in T.Parallel(*shape):
                    value[g, i] = dialect.widened(normed[g, i])
                dialect.largest_of(value, largest)
                for g in T.Parallel(groups):
                    size[g] = scale_byte(T, T.max(largest[g], T.float32(_FLOOR)))
                for g in T.Parallel(groups):
                    size_byte[g] = T.cast(size[g], "uint8")
                for g, i in T.Parallel(*shape):
                    code[g, i] = e4m3(T, value[g, i] * power_of_two(T, 254 - size[g]))
            T.copy(normed, hidden[token, 0:groups, 0:FP8_GROUP])
            T.copy(code, codes[token, 0:groups, 0:FP8_GROUP])
            T.copy(size_byte, scale[token, 0:groups])

    return norm_quantise


def norm_quantise(x: Tensor, weight: Tensor, *, eps: float, quantise: bool) -> Normed:
    """As the reference; the sum of squares runs in fp32.

    Raises:
        ValueError: rows for which TileLang finds no layout.
    """
    tokens, width = x.shape
    if why_not := width_of_groups(width):
        raise ValueError(f"norm_quantise: {why_not}; use reference")
    groups = width // FP8_GROUP
    hidden = torch.empty_like(x, memory_format=torch.contiguous_format)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scale = torch.empty((tokens, groups), dtype=torch.uint8, device=x.device)
    if tokens:
        shape = groups, FP8_GROUP
        launch(
            describe, x.unflatten(-1, shape), weight.view(shape), hidden.view(-1, *shape),
            codes.view(-1, *shape), scale, groups=groups, eps=eps, dtype=x.dtype, norm=weight.dtype,
        )  # fmt: skip
    return Normed(hidden, Quantised(codes, scale) if quantise else None)


def pack(weights: Any) -> Any:
    """The norm weight as it is."""
    return weights
