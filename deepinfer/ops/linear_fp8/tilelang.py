"""FP8 linear layer in TileLang: codes become bf16, then one matrix product. Meaning: reference.py.

Codes times powers of two are exact in bf16, so what rounds is the fp32 sum alone. A program makes
64 tokens x 64 rows and runs through K in ascending order, whatever the number of tokens. On Ascend
vector cores decode while cube cores multiply. Knows nothing of what it projects.
"""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportInvalidTypeForm=false

from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.formats import FP8_GROUP, Fp8Weight, Quantised, quantise_fp8
from deepinfer.ops.tilelang_dialects import Dialect, e4m3_value, launch, power_of_two
from deepinfer.ops.tilelang_refusals import shape_of_linear

_TOKENS = 64
_SCALES = (10, 246)  # E8M0 bytes of the weight
_THREADS = 128


def _part(size: int, most: int) -> int:
    return next(part for part in (128, 64, 32) if part <= most and size % part == 0)


def describe(dialect: Dialect, *, rows: int, columns: int) -> Any:
    """x [tokens, columns] and w [rows, columns] with their scales -> out [tokens, rows] bf16."""
    T = dialect.language
    tokens, block, step = T.dynamic("tokens"), _part(rows, 64), _part(columns, 128)
    across, groups = rows // block, columns // FP8_GROUP

    @T.prim_func
    def linear_fp8(
        x: T.Tensor((tokens, columns), "uint8"),
        x_scale: T.Tensor((tokens, groups), "uint8"),
        w: T.Tensor((rows, columns), "uint8"),
        w_scale: T.Tensor((rows // FP8_GROUP, groups), "uint8"),
        out: T.Tensor((tokens, rows), dialect.bf16),
    ):
        with dialect.launch(T.ceildiv(tokens, _TOKENS) * across, _THREADS) as place:
            token = place // across * _TOKENS
            row = place % across * block
            x_codes = dialect.tile((_TOKENS, step), "uint8")
            w_codes = dialect.tile((block, step), "uint8")
            x_size = dialect.tile((_TOKENS, step // FP8_GROUP), "float32")
            w_size = dialect.tile((block // FP8_GROUP, step // FP8_GROUP), "float32")
            left = dialect.operand((_TOKENS, step))
            right = dialect.operand((block, step))
            sums = dialect.sums((_TOKENS, block))
            for k in T.serial(columns // step):
                first = k * step
                T.copy(x[token : token + _TOKENS, first : first + step], x_codes)
                T.copy(w[row : row + block, first : first + step], w_codes)
                with dialect.vector(_THREADS):
                    # Groups outermost: Ascend converts no vectors of bytes.
                    for g, i in T.Parallel(step // FP8_GROUP, _TOKENS):
                        byte = x_scale[T.min(token + i, tokens - 1), first // FP8_GROUP + g]
                        x_size[i, g] = power_of_two(T, T.cast(byte, "int32"))
                    for g, i in T.Parallel(step // FP8_GROUP, block // FP8_GROUP):
                        byte = w_scale[row // FP8_GROUP + i, first // FP8_GROUP + g]
                        w_size[i, g] = power_of_two(T, T.cast(byte, "int32"))
                    for i, j in T.Parallel(_TOKENS, step):
                        value = e4m3_value(T, x_codes[i, j]) * x_size[i, j // FP8_GROUP]
                        left[i, j] = T.cast(value, left.dtype)
                    for i, j in T.Parallel(block, step):
                        value = (
                            e4m3_value(T, w_codes[i, j]) * w_size[i // FP8_GROUP, j // FP8_GROUP]
                        )
                        right[i, j] = T.cast(value, right.dtype)
                dialect.multiply(left, right, sums, k)
            dialect.store(sums, out, token, row)

    return linear_fp8


def linear_fp8(x: Tensor | Quantised, weight: Fp8Weight) -> Tensor:
    """As the reference, for FP8 weights.

    Args:
        x: [tokens, K] as an FP8 pair, or plain (it is then quantised).
        weight: [out, K], both multiples of 32, as stored.
    """
    pair = x if isinstance(x, Quantised) else quantise_fp8(x)
    tokens, (rows, columns) = len(pair.codes), weight.codes.shape
    out = torch.empty((tokens, rows), dtype=torch.bfloat16, device=pair.codes.device)
    if tokens:
        launch(describe, *pair, *weight, out, rows=rows, columns=columns)
    return out


def pack(weight: Fp8Weight | Tensor) -> Fp8Weight:
    """Codes and scales as stored.

    Raises:
        ValueError: not an FP8 weight, sizes that are no multiples of 32, or scales with which a
            code would be no normal bf16 number.
    """
    if not isinstance(weight, Fp8Weight):
        raise ValueError("linear_fp8: a plain weight; this kernel takes FP8, use reference")
    if why_not := shape_of_linear(*weight.codes.shape):
        raise ValueError(f"linear_fp8: {why_not}; use reference")
    least, most = int(weight.scale.min()), int(weight.scale.max())
    if least < _SCALES[0] or most > _SCALES[1]:
        raise ValueError(
            f"linear_fp8: scale bytes from {least} to {most}, this kernel takes {_SCALES[0]} to "
            f"{_SCALES[1]}; use reference"
        )
    return weight
