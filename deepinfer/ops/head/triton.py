"""The head in Triton: a bf16 product with fp32 sums in ascending K, for any number of tokens.

Tiles of weight and input come through the tensor memory accelerator, and programs that run at the
same time share a block of the weight. Tiles change no bits. Knows nothing of sampling.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from deepinfer.ops.triton_product import Tile, refuses_plain

_STEP = 64
# By tokens of a tile, narrowest first; and how long a tile takes, measured on one H200.
_TILES = {64: Tile(128, 64, 4, 4), 128: Tile(256, 128, 8, 4), 256: Tile(128, 256, 8, 4)}
_COSTS = {64: 192, 128: 282, 256: 563}


def cost(tokens: int) -> tuple[int, int]:
    """Width of the tile that is fastest for so many tokens, and how long it takes."""
    return min((-(-tokens // width) * each, width) for width, each in _COSTS.items())[::-1]


def choose(tokens: int) -> Tile:
    """The tile that is fastest for so many tokens; any gives the same bits."""
    return _TILES[cost(tokens)[0]]


@triton.jit(do_not_specialize=["tokens"])
def _logits(
    x, w, out_ptr, tokens, OUT: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """ROWS columns of the logits of TOKENS tokens."""
    gdc_launch_dependents()
    token, row = tl.program_id(0) * TOKENS, tl.program_id(1) * ROWS
    gdc_wait()
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for first in range(0, K, STEP):
        total = tl.dot(w.load([row, first]), x.load([token, first]).T, total)
    rows, columns = row + tl.arange(0, ROWS), token + tl.arange(0, TOKENS)
    at = columns.to(tl.int64)[None, :] * OUT + rows[:, None]
    tl.store(out_ptr + at, total, (rows < OUT)[:, None] & (columns < tokens)[None, :])


def pack(weight: Tensor) -> Tensor:
    """The weight as it is.

    Raises:
        ValueError: it is not bf16.
    """
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"head: the triton kernel takes a bf16 weight, not {weight.dtype}")
    return weight.contiguous()


def head(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits of bf16 hidden states: [tokens, d] x [vocab, d] -> fp32 [tokens, vocab]."""
    return launch(hidden.contiguous(), weight, choose(len(hidden)))


def launch(hidden: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """The kernel with a given tile; the rest as in `head`."""
    (tokens, columns), out = hidden.shape, weight.shape[0]
    logits = torch.empty((tokens, out), dtype=torch.float32, device=hidden.device)
    if tokens:
        x = TensorDescriptor.from_tensor(hidden, [tile.tokens, _STEP])
        w = TensorDescriptor.from_tensor(weight, [tile.rows, _STEP])
        _logits[(triton.cdiv(tokens, tile.tokens), triton.cdiv(out, tile.rows))](
            x, w, logits, tokens, out, columns, tile.rows, tile.tokens, _STEP,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=True,
        )  # fmt: skip
    return logits


def refuses(*, arch: str, quantised: bool, hidden: int, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_plain(arch=arch, quantised=quantised, hidden=hidden)
