"""New streams of many tokens, for Hopper: tiles by tensor memory copies, in one pass.

A program takes a group of columns of some tiles of 64 tokens; those that run together read
neighbouring columns. Of 64 columns of each stream at a time one warp starts the copies, eight
make the new streams, in the shared memory that the old ones came to, collapse them and sum squares,
and four multiply them with the projection and send them off. What follows needs sums over all
columns, so it is left to the launches after. Bits are those of triton_streams.py. Knows nothing of
coefficients.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.mhc_boundary.plan import programs

_WARPS = 8
_REGISTERS = 128  # of a thread, as all warps start; those that mix take over from the others
_STAGES = 3  # buffers
_TILE, _FOUR = gl.NVMMASharedLayout(128, 16, 2), gl.NVMMASharedLayout(128, 16, 3)


@gluon.jit
def _four(ptr, here):
    """Four numbers of each token, as columns."""
    return (
        gl.load(ptr, here, 0.0)[:, None],
        gl.load(ptr + 1, here, 0.0)[:, None],
        gl.load(ptr + 2, here, 0.0)[:, None],
        gl.load(ptr + 3, here, 0.0)[:, None],
    )


@gluon.jit
def _rounded(x):
    """bf16, two numbers an instruction."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], gl.bfloat16, True, 2
    )


@gluon.jit
def _mixed(x, y, c0, c1, c2, c3, post):
    """post * y + the sum of c_j * x_j in the order of the reference, rounded to bf16."""
    total = c0 * x[0] + c1 * x[1]
    total = total + c2 * x[2] + c3 * x[3]
    return _rounded(post * y + total)


@gluon.jit
def _row_sums(x, layout: gl.constexpr):
    """Sum of each of 64 rows of 64 numbers, neighbours first: an order that no layout changes."""
    x = gl.sum(x.reshape([64, 32, 2]), 2)
    x = gl.sum(x.reshape([64, 16, 2]), 2)
    x = gl.sum(x.reshape([64, 8, 2]), 2)
    x = gl.sum(x.reshape([64, 4, 2]), 2)
    x = gl.sum(x.reshape([64, 2, 2]), 2)
    return gl.convert_layout(gl.sum(x, 1), layout)


@gluon.jit
def _mix(
    xs, ys, full, ready, post_ptr, comb_ptr, pre_ptr, square_ptr, plain_square_ptr, tokens,
    CHUNKS: gl.constexpr, PENDING: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """New streams, their collapse, and sums of squares of each group of columns."""
    warps: gl.constexpr = gl.num_warps()
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    gdc_wait()
    zeros = gl.zeros([64, 64], gl.float32, wide)
    turn = 0
    for tile in range(gl.program_id(0), (tokens + 63) // 64, gl.num_programs(0)):
        token = tile * 64 + gl.arange(0, 64, gl.SliceLayout(1, wide))
        here = token < tokens
        pre = _four(pre_ptr + token * 4, here)
        if PENDING:
            post = _four(post_ptr + token * 4, here)
            c0 = _four(comb_ptr + token * 16, here)
            c1 = _four(comb_ptr + token * 16 + 4, here)
            c2 = _four(comb_ptr + token * 16 + 8, here)
            c3 = _four(comb_ptr + token * 16 + 12, here)
        squares, plain_squares = zeros, zeros
        for _ in range(CHUNKS):
            slot = turn % STAGES
            old, plain_to = xs.index(slot).reshape([256, 64]), ys.index(slot)
            mbarrier.wait(full.index(slot), turn // STAGES & 1)
            x = (
                old.slice(0, 64).load(wide).to(gl.float32),
                old.slice(64, 64).load(wide).to(gl.float32),
                old.slice(128, 64).load(wide).to(gl.float32),
                old.slice(192, 64).load(wide).to(gl.float32),
            )
            if PENDING:
                y = plain_to.load(wide).to(gl.float32)
            plain = zeros
            for k in gl.static_range(4):
                if PENDING:
                    new = _mixed(x, y, c0[k], c1[k], c2[k], c3[k], post[k])
                    old.slice(64 * k, 64).store(new)
                    new = new.to(gl.float32)
                else:
                    new = x[k]
                squares = gl.fma(new, new, squares)
                plain = pre[k] * new if k == 0 else plain + pre[k] * new
            plain = _rounded(plain)
            plain_to.store(plain)
            fence_async_shared()
            mbarrier.arrive(ready.index(slot), count=1)
            plain = plain.to(gl.float32)
            plain_squares = gl.fma(plain, plain, plain_squares)
            turn += 1
        at = gl.program_id(1) * tokens + token
        thin: gl.constexpr = gl.SliceLayout(1, wide)
        gl.store(square_ptr + at, _row_sums(squares, thin), here)
        gl.store(plain_square_ptr + at, _row_sums(plain_squares, thin), here)


@gluon.jit
def _project(
    xs, ys, fs, ready, free, new_tiles, plain_tiles, part_ptr, tokens,
    CHUNKS: gl.constexpr, PENDING: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Products of the new streams, which are stored, for each group of columns."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    none = gl.zeros([64, 64], gl.float32, mma)
    group = gl.program_id(1)
    row = gl.arange(0, 64, gl.SliceLayout(0, mma))
    turn = 0
    for tile in range(gl.program_id(0), (tokens + 63) // 64, gl.num_programs(0)):
        start = tile * 64
        total = none
        for chunk in range(CHUNKS):
            slot = turn % STAGES
            new, fn = xs.index(slot), fs.index(slot)
            column = (chunk * GROUPS + group) * 64
            mbarrier.wait(ready.index(slot), turn // STAGES & 1)
            if PENDING:
                tma.async_copy_shared_to_global(new_tiles, [0, start, column], new)
            tma.async_copy_shared_to_global(plain_tiles, [start, column], ys.index(slot))
            new, fn = new.reshape([256, 64]), fn.reshape([256, 64])
            part = none
            for k in gl.static_range(4):
                part = warpgroup_mma(
                    new.slice(64 * k, 64), fn.slice(64 * k, 64).permute((1, 0)), part,
                    use_acc=k > 0, is_async=True,
                )  # fmt: skip
            total += warpgroup_mma_wait(0, [part])
            tma.store_wait(0)
            mbarrier.arrive(free.index(slot), count=1)
            turn += 1
        token = start + gl.arange(0, 64, gl.SliceLayout(1, mma))
        used = (token < tokens)[:, None] & (row % 32 < 24)[None, :]
        at = ((group * tokens + token) * 64)[:, None] + row[None, :]
        gl.store(part_ptr + at, total, used)


@gluon.jit
def _load(
    xs, ys, fs, full, free, x_tiles, y_tiles, f_tiles, tokens,
    CHUNKS: gl.constexpr, PENDING: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Fill buffers in the order in which they are used."""
    group = gl.program_id(1)
    turn = 0
    for tile in range(gl.program_id(0), (tokens + 63) // 64, gl.num_programs(0)):
        start = tile * 64
        for chunk in range(CHUNKS):
            slot = turn % STAGES
            column = (chunk * GROUPS + group) * 64
            bar = full.index(slot)
            mbarrier.wait(free.index(slot), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(bar, (512 + 64 * PENDING) * 128)
            tma.async_copy_global_to_shared(f_tiles, [0, 0, column], bar, fs.index(slot))
            if turn == 0:  # the projection does not depend on the kernel before
                gdc_wait()
            tma.async_copy_global_to_shared(x_tiles, [0, start, column], bar, xs.index(slot))
            if PENDING:
                tma.async_copy_global_to_shared(y_tiles, [start, column], bar, ys.index(slot))
            turn += 1


@gluon.jit(do_not_specialize=["tokens"])
def _tiles(
    x_tiles, y_tiles, f_tiles, new_tiles, plain_tiles, post_ptr, comb_ptr, pre_ptr,
    square_ptr, plain_square_ptr, part_ptr, tokens,
    HIDDEN: gl.constexpr, PENDING: gl.constexpr, GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """A group of columns, of every so-many-th 64 tokens. Column c is of group c / 64 % GROUPS."""
    chunks: gl.constexpr = HIDDEN // (64 * GROUPS)
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    four: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 4, 64, 64], four)
    ys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], swizzled)
    fs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 4, 64, 64], four)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_mix, (
                xs, ys, full, ready, post_ptr, comb_ptr, pre_ptr, square_ptr, plain_square_ptr,
                tokens, chunks, PENDING, STAGES,
            )),
            (_project, (
                xs, ys, fs, ready, free, new_tiles, plain_tiles, part_ptr, tokens,
                chunks, PENDING, STAGES, GROUPS,
            )),
            (_load, (
                xs, ys, fs, full, free, x_tiles, y_tiles, f_tiles, tokens,
                chunks, PENDING, STAGES, GROUPS,
            )),
        ],
        [4, 1],
        [96, 24],
    )  # fmt: skip


def _streams_of(t: Tensor) -> TensorDescriptor:
    """Tiles of [4, tokens or rows, columns] of a tensor [tokens or rows, 4, columns]."""
    rows, count, columns = t.shape
    strides = [t.stride(1), t.stride(0), 1]
    return TensorDescriptor(t, [count, rows, columns], strides, [4, 64, 64], _FOUR)


def tiles(
    streams: Tensor,
    y: Tensor,
    post: Tensor,
    comb: Tensor,
    pre: Tensor,
    fn: Tensor,
    new: Tensor,
    plain: Tensor,
    squares: Tensor,
    plain_squares: Tensor,
    parts: Tensor,
    pending: bool,
) -> None:
    """Fill new streams and, not normalised, the sub-layer's input; sums for each group of columns.

    Args:
        streams: [tokens, 4, hidden] bf16.
        y: [tokens, hidden] bf16, what is pending (not read without `pending`).
        post: [tokens, 4] fp32.
        comb: [tokens, 4, 4] fp32.
        pre: [tokens, 4] fp32.
        fn: [64, 4 * hidden] bf16.
        new: as `streams`; not written without `pending`.
        plain: [tokens, hidden] bf16, the collapse.
        squares: fp32 [groups, tokens], of the new streams.
        plain_squares: the same of the collapse.
        parts: fp32 [groups, tokens, 64], of the product with `fn`.
        pending: is there anything?
    """
    tokens, _, hidden = streams.shape
    groups = len(parts)
    plain_map = TensorDescriptor.from_tensor(plain, [64, 64], _TILE)
    _tiles[(programs(tokens, groups), groups)](
        _streams_of(streams),
        TensorDescriptor.from_tensor(y, [64, 64], _TILE) if pending else plain_map,
        _streams_of(fn.unflatten(1, (4, hidden))), _streams_of(new), plain_map,
        post, comb, pre, squares, plain_squares, parts, tokens,
        hidden, pending, groups, _STAGES,
        num_warps=_WARPS, maxnreg=_REGISTERS, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
