"""The sum of two outputs in TileLang, some columns of a token a program. Knows neither."""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportInvalidTypeForm=false

from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.tilelang_dialects import Dialect, block_of, launch, threads_of


def describe(dialect: Dialect, *, width: int, dtype: torch.dtype) -> Any:
    """routed, shared fp32 [tokens, width] -> out [tokens, width] of `dtype`."""
    T = dialect.language
    tokens, stored, block = T.dynamic("tokens"), dialect.stored(dtype), block_of(width)
    blocks, threads = width // block, threads_of(block)

    @T.prim_func
    def add_outputs(
        routed: T.Tensor((tokens, width), "float32"),
        shared: T.Tensor((tokens, width), "float32"),
        out: T.Tensor((tokens, width), stored),
    ):
        with dialect.launch(tokens * blocks, threads) as place:
            token = place // blocks
            first = place % blocks * block
            one = dialect.tile((block,), "float32")
            two = dialect.tile((block,), "float32")
            both = dialect.tile((block,), stored)
            T.copy(routed[token, first : first + block], one)
            T.copy(shared[token, first : first + block], two)
            with dialect.vector(threads):
                for i in T.Parallel(block):
                    both[i] = dialect.rounded(one[i] + two[i], stored)
            T.copy(both, out[token, first : first + block])

    return add_outputs


def add_outputs(routed: Tensor, shared: Tensor, *, dtype: torch.dtype) -> Tensor:
    """As the reference."""
    out = torch.empty(routed.shape, dtype=dtype, device=routed.device)
    if out.numel():
        launch(describe, routed, shared, out, width=routed.shape[1], dtype=dtype)
    return out


def pack(weights: Any) -> Any:
    """There is nothing to pack."""
    return weights
