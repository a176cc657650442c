"""Products with bf16 weights in Triton: fixed segments of K, so that a row's bits never change.

K is cut into segments by the shape of the weight alone; each is a program whose fp32 sums run in
ascending K, and a second launch adds them first to last. Token tiles change no bits. Knows nothing
of what is multiplied.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.portable import refuses_arch

_ADD = 512
_PROGRAMS = 200  # wanted; somewhat more than one for each multiprocessor of an H200
_LEAST_STEPS = 4  # steps of 64 columns a segment


class Tile(NamedTuple):
    """Shape of one program: `rows` of the weight, `tokens`, warps, buffers in flight."""

    rows: int
    tokens: int
    warps: int
    stages: int


def segments(out: int, columns: int) -> int:
    """Segments of K: enough programs for the device, none shorter than four steps of 64 columns.

    Args:
        out: rows of the weight.
        columns: K, a multiple of 64.
    """
    steps, blocks = columns // 64, -(-out // 64)
    counts = [n for n in range(1, steps // _LEAST_STEPS + 1) if steps % n == 0]
    enough = [n for n in counts if n * blocks >= _PROGRAMS]
    return min(enough) if enough else max(counts, default=1)


def choose(tokens: int, out: int) -> Tile:
    """The narrowest tile that holds all tokens; a wide one for many. Any gives the same bits."""
    rows = 128 if out >= 128 * _PROGRAMS else 64
    width = next((w for w in (16, 32, 64) if tokens <= w), 128)
    return Tile(rows, width, 8 if rows * width >= 128 * 128 else 4, 4 if width <= 64 else 3)


@triton.jit(do_not_specialize=["tokens"])
def _product(
    x_ptr, w_ptr, out_ptr, tokens, OUT,
    K: tl.constexpr, SEGMENT: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """out [segment, tokens, OUT] = x w^T of one segment of K, fp32."""
    gdc_launch_dependents()
    # Neighbouring programs share rows of the weight, so that it is read from memory once.
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(2) * SEGMENT
    w_ptr += row[:, None].to(tl.int64) * K + start + tl.arange(0, STEP)[None, :]
    x_ptr += token[None, :].to(tl.int64) * K + start + tl.arange(0, STEP)[:, None]
    whole, here = (row < OUT)[:, None], (token < tokens)[None, :]
    gdc_wait()
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for first in range(0, SEGMENT, STEP):
        w = tl.load(w_ptr + first, whole, 0.0)
        x = tl.load(x_ptr + first, here, 0.0)
        total = tl.dot(w, x, total)
    at = (tl.program_id(2).to(tl.int64) * tokens + token)[None, :] * OUT + row[:, None]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), whole & here)


@triton.jit(do_not_specialize=["tokens"])
def _add(part_ptr, out_ptr, tokens, OUT: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sum of the segments, first to last."""
    gdc_wait()
    gdc_launch_dependents()
    size = tokens * OUT  # of a known divisor, so that loads take 16 bytes
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(SEGMENTS):
        total += tl.load(part_ptr + s * size.to(tl.int64) + at, at < size, 0.0)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), at < size)


def parts(x: Tensor, weight: Tensor) -> Tensor:
    """Sums of each segment: x [tokens, K] times weight [out, K] -> fp32 [segments, tokens, out].

    Args:
        x: bf16, contiguous; K a multiple of 64.
        weight: bf16, contiguous.
    """
    (tokens, columns), out = x.shape, weight.shape[0]
    count = segments(out, columns)
    sums = torch.empty((count, tokens, out), dtype=torch.float32, device=x.device)
    if tokens:
        _launch(x, weight, sums, choose(tokens, out), count)
    return sums


def _launch(x: Tensor, weight: Tensor, sums: Tensor, tile: Tile, count: int) -> None:
    (tokens, columns), out = x.shape, weight.shape[0]
    _product[(triton.cdiv(tokens, tile.tokens), triton.cdiv(out, tile.rows), count)](
        x, weight, sums, tokens, out, columns, columns // count, tile.rows, tile.tokens, 64,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=True,
    )  # fmt: skip


def product(x: Tensor, weight: Tensor, dtype: torch.dtype, tile: Tile | None = None) -> Tensor:
    """x [tokens, K] times weight [out, K] transposed -> [tokens, out] in `dtype`.

    Args:
        x: bf16, contiguous; K a multiple of 64.
        weight: bf16, contiguous.
        dtype: fp32, or bf16 (the fp32 sum rounded once).
        tile: shape of a program; None takes the usual one.
    """
    (tokens, columns), out = x.shape, weight.shape[0]
    count = segments(out, columns)
    y = torch.empty((tokens, out), dtype=dtype, device=x.device)
    if not tokens:
        return y
    tile = tile or choose(tokens, out)
    if count == 1:
        _launch(x, weight, y, tile, 1)
        return y
    sums = torch.empty((count, tokens, out), dtype=torch.float32, device=x.device)
    _launch(x, weight, sums, tile, count)
    _add[(triton.cdiv(y.numel(), _ADD),)](
        sums, y, tokens, out, count, _ADD, num_warps=4, launch_pdl=True
    )
    return y


def refuses_plain(*, arch: str, quantised: bool, hidden: int) -> str | None:
    """Why these products do not serve bf16 numerics on `arch`, or None."""
    if why_not := refuses_arch(arch):
        return why_not
    if not quantised:
        return "takes bf16 input and weights only"
    return f"hidden {hidden} is no multiple of 64" if hidden % 64 else None
