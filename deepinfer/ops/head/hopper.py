"""The head on Hopper: for some numbers of tokens, 192 tokens and 256 rows of the weight a program.

Three groups of four warps take 64 tokens each, as the left operand; the first one also keeps tensor
memory copies going. Barriers in shared memory say which buffers are full and which are free. Sums
run in ascending K, as in triton.py, which takes all other numbers of tokens; the unit's sums do not
depend on which operand is left, hence equal bits. Knows nothing of sampling.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.head.triton import choose, cost, launch
from deepinfer.ops.triton_product import refuses_plain

_PROGRAMS = 132  # multiprocessors of an H200; each holds one program
_REGISTERS = 168  # of a thread: 128 sums, and addresses
_TOKENS, _ROWS, _STAGES = 192, 256, 4
_AHEAD = 3  # steps that are copied ahead
_COST = 425  # how long 192 tokens take, as in triton.py
_SWIZZLED = gl.NVMMASharedLayout(128, 16, 2)


@gluon.jit
def _fetch_weight(ws, full, w_tiles, block, step, slot):
    bar = full.index(slot)
    mbarrier.expect(bar, (ws.shape[1] + 192) * 128)
    tma.async_copy_global_to_shared(w_tiles, [block * ws.shape[1], step * 64], bar, ws.index(slot))


@gluon.jit
def _fetch_input(x0, x1, x2, full, x_tiles, tile, step, slot):
    bar, token, column = full.index(slot), tile * 192, step * 64
    tma.async_copy_global_to_shared(x_tiles, [token, column], bar, x0.index(slot))
    tma.async_copy_global_to_shared(x_tiles, [token + 64, column], bar, x1.index(slot))
    tma.async_copy_global_to_shared(x_tiles, [token + 128, column], bar, x2.index(slot))


@gluon.jit
def _multiply(
    group: gl.constexpr, x0, x1, x2, ws, full, free, x_tiles, w_tiles, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, AHEAD: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """The 64 tokens `group` of every tile of 192."""
    steps: gl.constexpr = K // 64
    stages: gl.constexpr = ws.shape[0]
    rows: gl.constexpr = ws.shape[1]
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])
    x = x0 if group == 0 else x1 if group == 1 else x2
    tiles = (tokens + 191) // 192
    items = tiles * ((OUT + rows - 1) // rows)
    token = gl.arange(0, 64, gl.SliceLayout(1, mma))
    row = gl.arange(0, rows, gl.SliceLayout(0, mma))
    if group == 0:  # the weight does not depend on the kernel before
        for s in gl.static_range(AHEAD):
            _fetch_weight(ws, full, w_tiles, gl.program_id(0) // tiles, s, s)
    gdc_wait()
    if group == 0:
        for s in gl.static_range(AHEAD):
            _fetch_input(x0, x1, x2, full, x_tiles, gl.program_id(0) % tiles, s, s)
    turn = 0
    for item in range(gl.program_id(0), items, PROGRAMS):
        first_token, block = item % tiles * 192 + 64 * group, item // tiles
        total = gl.zeros([64, rows], gl.float32, mma)
        for step in range(steps):
            slot = turn % stages
            mbarrier.wait(full.index(slot), turn // stages & 1)
            w = ws.index(slot).permute((1, 0))
            total = warpgroup_mma(x.index(slot), w, total, is_async=True)
            total = warpgroup_mma_wait(1, [total])
            if step > 0:
                mbarrier.arrive(free.index((turn - 1) % stages), count=1)
            if group == 0:
                far = turn + AHEAD
                wraps = (step + AHEAD >= steps).to(gl.int32)
                later, then = item + PROGRAMS * wraps, step + AHEAD - steps * wraps
                if later < items:
                    mbarrier.wait(free.index(far % stages), (far // stages & 1) ^ 1)
                    _fetch_weight(ws, full, w_tiles, later // tiles, then, far % stages)
                    _fetch_input(x0, x1, x2, full, x_tiles, later % tiles, then, far % stages)
            turn += 1
        total = warpgroup_mma_wait(0, [total])
        mbarrier.arrive(free.index((turn - 1) % stages), count=1)
        tile_ptr = out_ptr + (first_token.to(gl.int64) * OUT + block * rows)
        used = (first_token + token < tokens)[:, None]
        if OUT % rows:
            used = used & (block * rows + row < OUT)[None, :]
        gl.store(tile_ptr + ((token * OUT)[:, None] + row[None, :]), total, used)


@gluon.jit(do_not_specialize=["tokens"])
def _head(
    x_tiles, w_tiles, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    AHEAD: gl.constexpr, PROGRAMS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Logits; each program takes every PROGRAMS-th tile."""
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ws = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, 64], swizzled)
    x0 = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], swizzled)
    x1 = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], swizzled)
    x2 = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], swizzled)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=3)
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                gl.constexpr(0), x0, x1, x2, ws, full, free, x_tiles, w_tiles, out_ptr, tokens,
                K, OUT, AHEAD, PROGRAMS,
            )),
            (_multiply, (
                gl.constexpr(1), x0, x1, x2, ws, full, free, x_tiles, w_tiles, out_ptr, tokens,
                K, OUT, AHEAD, PROGRAMS,
            )),
            (_multiply, (
                gl.constexpr(2), x0, x1, x2, ws, full, free, x_tiles, w_tiles, out_ptr, tokens,
                K, OUT, AHEAD, PROGRAMS,
            )),
        ],
        [4, 4],
        [REGISTERS, REGISTERS],
    )  # fmt: skip


def head(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits of bf16 hidden states: [tokens, d] x [vocab, d] -> fp32 [tokens, vocab]."""
    hidden = hidden.contiguous()
    takes = cost(len(hidden))[1]
    if takes <= triton.cdiv(len(hidden), _TOKENS) * _COST:
        return launch(hidden, weight, choose(len(hidden)))
    return wide(hidden, weight)


def wide(hidden: Tensor, weight: Tensor) -> Tensor:
    """The same with 192 tokens a program, at least one token."""
    (tokens, columns), out = hidden.shape, weight.shape[0]
    logits = torch.empty((tokens, out), dtype=torch.float32, device=hidden.device)
    items = triton.cdiv(tokens, _TOKENS) * triton.cdiv(out, _ROWS)
    _head[(min(_PROGRAMS, items),)](
        TensorDescriptor.from_tensor(hidden, [64, 64], _SWIZZLED),
        TensorDescriptor.from_tensor(weight, [_ROWS, 64], _SWIZZLED),
        logits, tokens, columns, out, _ROWS, _STAGES, _AHEAD, _PROGRAMS, _REGISTERS,
        num_warps=4, maxnreg=_REGISTERS, launch_pdl=True,
    )  # fmt: skip
    return logits


def refuses(*, arch: str, quantised: bool, hidden: int, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    return refuses_plain(arch=arch, quantised=quantised, hidden=hidden)
