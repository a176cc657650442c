"""Few experts and tokens on Hopper: every expert multiplies all tokens, so nothing is sorted.

Row expert * TOKENS + token of what lies between the products belongs to that pair, zero where the
token did not choose the expert. A program has 256 rows of a weight: two groups of four warps
multiply 128 each, one warp copies the weight and one the input; barriers in shared memory say which
buffers are full and which are free. Weights are fetched before the kernel before has ended, and a
program of down starts when all of gate and up run: it waits for a counter of its expert, never for
a program that has no place yet. Bits are those of triton_product.py. Knows nothing of how experts
are chosen.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.experts.packing import PackedExperts, PackedMatrix
from deepinfer.ops.experts.plan import Tile
from deepinfer.ops.experts.triton_activation import activate, store
from deepinfer.ops.experts.triton_pairs import combine, share_scales
from deepinfer.ops.experts.triton_product import decoded
from deepinfer.ops.formats import Quantised

_REGISTERS = 232  # of a thread that multiplies
_GROUPS = 128  # of 32 columns that one program moves to common scales
_COLUMNS = 1024  # of a row that one program sums
_SWIZZLED = gl.NVMMASharedLayout(128, 8, 2)


@gluon.jit
def _turn(slot, phase, STAGES: gl.constexpr):
    """The buffer after `slot` and the phase of its barriers."""
    last = slot == STAGES - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _copy_weights(
    words, exponents, full, free, tiles, exponent_ptr, K: gl.constexpr, STAGES: gl.constexpr
):
    """Fill buffers with a tile of 256 rows of the weight, which depends on nothing."""
    steps: gl.constexpr = K // 128
    tile = gl.program_id(0)
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    row = gl.arange(0, 256, layout)
    exponent_ptr = exponent_ptr + tile * (256 * steps) + (row // 64 * (64 * steps) + row % 64)
    slot, phase = 0, 0
    for step in range(steps):
        bar = full.index(slot)
        mbarrier.wait(free.index(slot), phase ^ 1)
        async_copy.async_copy_global_to_shared(exponents.index(slot), exponent_ptr + step * 64)
        async_copy.mbarrier_arrive(bar)
        mbarrier.expect(bar, 4 * 4096)
        for b in gl.static_range(4):
            at = [((tile * 4 + b) * steps + step) * 32, 0]
            place = words.index(slot).slice(32 * b, 32)
            tma.async_copy_global_to_shared(tiles, at, bar, place)
        slot, phase = _turn(slot, phase, STAGES)


@gluon.jit
def _count(ptr):
    """A counter; what was written before it was raised is visible afterwards."""
    load: gl.constexpr = "ld.acquire.gpu.global.b32 $0, [$1];"
    return gl.inline_asm_elementwise(load, "=r,l", [ptr], gl.int32, False, 1)


@gluon.jit
def _fence(value):
    """Orders writes and tensor memory copies before and after it; returns `value`."""
    fence: gl.constexpr = "fence.proxy.async.global; mov.b32 $0, $1;"
    return gl.inline_asm_elementwise(fence, "=r,r", [value], gl.int32, False, 1)


@gluon.jit
def _copy_input(
    xs, sizes, full, free, tiles, size_ptr, ready_ptr,
    EXPERTS: gl.constexpr, K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr,
    TOKENS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The same with the input and its scales, once they exist."""
    parts: gl.constexpr = 1 if CHOICES else 2
    stride: gl.constexpr = TOKENS if CHOICES else EXPERTS * TOKENS
    if CHOICES:
        first = 0
        gdc_wait()
        # The next kernel reads counters which the one before has set to zero.
        gdc_launch_dependents()
    else:
        expert = gl.program_id(0) // (OUT // 256)
        first = expert * TOKENS
        count = _count(ready_ptr + expert)
        while count < 2 * (K // 128):
            count = _count(ready_ptr + expert)
        _fence(count)
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    piece = gl.arange(0, parts * TOKENS, layout)
    size_ptr = size_ptr + first + (piece // TOKENS * stride + piece % TOKENS)
    slot, phase = 0, 0
    for step in range(K // 128):
        bar = full.index(slot)
        mbarrier.wait(free.index(slot), phase ^ 1)
        size_at = size_ptr + step * (parts * stride)
        async_copy.async_copy_global_to_shared(sizes.index(slot), size_at)
        async_copy.mbarrier_arrive(bar)
        mbarrier.expect(bar, TOKENS * 128)
        tma.async_copy_global_to_shared(tiles, [first, step * 128], bar, xs.index(slot))
        slot, phase = _turn(slot, phase, STAGES)


@gluon.jit
def _words(words, block: gl.constexpr, chunk: gl.constexpr):
    """Words of 64 rows and 64 columns, four a thread."""
    load: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    return words.slice(32 * block + 16 * chunk, 16).load(load).reshape([128, 16])


@gluon.jit
def _left(first, second, exponent, part: gl.constexpr, RANGE: gl.constexpr, layout: gl.constexpr):
    """64 rows and RANGE columns of the weight, decoded."""
    if RANGE == 128:
        a, b = decoded(first, exponent, 0, layout), decoded(second, exponent, 1, layout)
        both = gl.join(a, b).permute((0, 2, 1)).reshape([64, 128])
        a = gl.convert_layout(both, layout, assert_trivial=True)
    else:
        a = decoded(second if part else first, exponent, part, layout)
    return a


@gluon.jit
def _sums(
    group: gl.constexpr, words, exponents, xs, sizes, full, free,
    K: gl.constexpr, STAGES: gl.constexpr, TOKENS: gl.constexpr, RANGE: gl.constexpr,
):  # fmt: skip
    """Both blocks of 64 rows of a group times the tile's input.

    One block's product runs while the other one is decoded, and while that one is scaled. None runs
    on into the next step: the assembler would make all of them wait for each other.
    """
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 32])
    layout: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    none = gl.zeros([64, TOKENS], gl.float32, mma)
    upper, lower = none, none
    slot, phase = 0, 0
    for _ in range(K // 128):
        mbarrier.wait(full.index(slot), phase)
        # All loads come first: none can be moved before a product that has been started.
        word, exponent, x = words.index(slot), exponents.index(slot), xs.index(slot)
        one, two = _words(word, 2 * group, 0), _words(word, 2 * group, 1)
        high = exponent.slice(128 * group, 64).load(rows)
        three, four = _words(word, 2 * group + 1, 0), _words(word, 2 * group + 1, 1)
        low = exponent.slice(128 * group + 64, 64).load(rows)
        size = sizes.index(slot).slice(0, TOKENS).load(gl.SliceLayout(0, mma))
        for part in gl.static_range(128 // RANGE):
            columns = x.slice(64 * part, RANGE, 1).permute((1, 0))
            a = _left(one, two, high, part, RANGE, layout)
            first = warpgroup_mma(a, columns, none, use_acc=False, is_async=True)
            a = _left(three, four, low, part, RANGE, layout)
            second = warpgroup_mma(a, columns, none, use_acc=False, is_async=True)
            first = warpgroup_mma_wait(1, [first])
            upper += first * size[None, :]
            second = warpgroup_mma_wait(0, [second])
            lower += second * size[None, :]
            if part + 1 < 128 // RANGE:
                after = sizes.index(slot).slice((part + 1) * TOKENS, TOKENS)
                size = after.load(gl.SliceLayout(0, mma))
        mbarrier.arrive(free.index(slot), count=1)
        slot, phase = _turn(slot, phase, STAGES)
    return upper, lower


@gluon.jit
def _shares(
    ids_ptr, share_ptr, expert, tokens, TOKENS: gl.constexpr, CHOICES: gl.constexpr
):  # fmt: skip
    """Routing weight of each token for an expert, zero where it did not choose it."""
    token = gl.arange(0, TOKENS, gl.BlockedLayout([1], [32], [4], [0]))
    share = token.to(gl.float32) * 0
    for choice in gl.static_range(CHOICES):
        at = token * CHOICES + choice
        chosen = gl.load(ids_ptr + at, token < tokens, -1) == expert
        share += gl.load(share_ptr + at, chosen, 0.0)
    return share


@gluon.jit
def _multiply(
    group: gl.constexpr, words, exponents, xs, sizes, full, free, base_ptr, ids_ptr, share_ptr,
    out_ptr, out_size_ptr, ready_ptr, tokens, limit,
    EXPERTS: gl.constexpr, K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr,
    TOKENS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The first or the second half of the rows of a tile."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 32])
    tile = gl.program_id(0)
    expert, block = tile // (OUT // 256), tile % (OUT // 256) * 2 + group
    base_ptr += tile * 256 + group * 128 + gl.arange(0, 64, gl.SliceLayout(1, mma))
    high, low = gl.load(base_ptr)[:, None], gl.load(base_ptr + 64)[:, None]
    if CHOICES:
        gdc_wait()
        share = _shares(ids_ptr, share_ptr, expert, tokens, TOKENS, CHOICES)
    RANGE: gl.constexpr = 128 if CHOICES else 64
    upper, lower = _sums(
        group, words, exponents, xs, sizes, full, free, K, STAGES, TOKENS, RANGE
    )  # fmt: skip
    if CHOICES:
        activate(
            upper * high, lower * low, gl.convert_layout(share, gl.SliceLayout(0, mma)), out_ptr,
            out_size_ptr, EXPERTS * TOKENS, limit, expert * TOKENS, TOKENS, block, 2, OUT // 2,
        )  # fmt: skip
        one = _fence(1)
        gl.thread_barrier()
        gl.atomic_add(ready_ptr + expert, one, sem="release", scope="gpu")
    else:
        upper, lower = (upper * high).to(gl.bfloat16), (lower * low).to(gl.bfloat16)
        store(upper, out_ptr, expert * TOKENS, tokens, 2 * block, OUT)
        store(lower, out_ptr, expert * TOKENS, tokens, 2 * block + 1, OUT)
        gdc_wait()  # whoever waits for this kernel waits for the one before, too


@gluon.jit(do_not_specialize=["tokens"])
def _tile(
    x_tiles, w_tiles, size_ptr, exponent_ptr, base_ptr, ids_ptr, share_ptr, out_ptr, out_size_ptr,
    ready_ptr, tokens, limit,
    EXPERTS: gl.constexpr, K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr,
    TOKENS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Gate and up with the activation (`CHOICES` > 0), or down, y = bf16(h w2^T)."""
    parts: gl.constexpr = 1 if CHOICES else 2
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    words = gl.allocate_shared_memory(gl.uint8, [STAGES, 128, 128], swizzled)
    exponents = gl.allocate_shared_memory(gl.int32, [STAGES, 256], plain)
    xs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TOKENS, 128], swizzled)
    sizes = gl.allocate_shared_memory(gl.float32, [STAGES, parts * TOKENS], plain)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=2)
        mbarrier.init(free.index(s), count=2)
    if not CHOICES:
        gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                0, words, exponents, xs, sizes, full, free, base_ptr, ids_ptr, share_ptr, out_ptr,
                out_size_ptr, ready_ptr, tokens, limit, EXPERTS, K, OUT, CHOICES, TOKENS, STAGES,
            )),
            (_multiply, (
                1, words, exponents, xs, sizes, full, free, base_ptr, ids_ptr, share_ptr, out_ptr,
                out_size_ptr, ready_ptr, tokens, limit, EXPERTS, K, OUT, CHOICES, TOKENS, STAGES,
            )),
            (_copy_weights, (
                words, exponents, full, free, w_tiles, exponent_ptr, K, STAGES,
            )),
            (_copy_input, (
                xs, sizes, full, free, x_tiles, size_ptr, ready_ptr,
                EXPERTS, K, OUT, CHOICES, TOKENS, STAGES,
            )),
        ],
        [4, 1, 1],
        [REGISTERS, 40, 40],
    )  # fmt: skip


def _tiles(rows: Tensor, height: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(rows, [height, 128], _SWIZZLED)


def few(
    x: Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: PackedExperts,
    limit: float,
    tile: Tile,
) -> Tensor:
    """Four launches: share the input's scales; gate and up; down; sum by ascending expert.

    Arguments and result as in `experts`; `tile` holds all tokens.
    """
    tokens, hidden = x.codes.shape
    choices, experts = topk_idx.shape[1], weights.w13.codes.shape[0]
    inner, width, device = weights.inner, tile.tokens, x.codes.device
    assert tokens <= width, "every expert multiplies all tokens"
    ids, share = topk_idx.contiguous(), topk_weights.contiguous()
    fp8 = torch.float8_e4m3fn
    moved = torch.empty((tokens, hidden), dtype=fp8, device=device)
    sizes = torch.empty((hidden // 128, width), dtype=torch.float32, device=device)
    ready = torch.empty(experts, dtype=torch.int32, device=device)
    h = torch.empty((experts * width, inner), dtype=fp8, device=device)
    h_sizes = torch.empty((inner // 64, experts * width), dtype=torch.float32, device=device)
    y = torch.empty((experts * width, hidden), dtype=torch.bfloat16, device=device)
    out = torch.empty((tokens, hidden), dtype=torch.float32, device=device)
    share_scales[(triton.cdiv(width * hidden, 32 * _GROUPS),)](
        x.codes, x.scale, moved, sizes, ready, tokens, hidden, width, experts, _GROUPS,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip

    def multiply(source: Tensor, scale: Tensor, weight: PackedMatrix, to: Tensor, k: int) -> None:
        columns, rows = source.shape[1], weight.base.shape[1]
        _tile[(experts * rows // 256,)](
            _tiles(source, width), _tiles(weight.codes.view(-1, 128), 32), scale, weight.exponents,
            weight.base, ids, share, to, h_sizes, ready, tokens, limit,
            experts, columns, rows, k, width, tile.stages, _REGISTERS,
            num_warps=4, maxnreg=168, launch_pdl=True,
        )  # fmt: skip

    multiply(moved, sizes, weights.w13, h, choices)
    multiply(h, h_sizes, weights.w2, y, 0)
    combine[(tokens, triton.cdiv(hidden, _COLUMNS))](
        y, ids, out, hidden, choices, _COLUMNS, experts, width, num_warps=4, launch_pdl=True
    )
    return out
