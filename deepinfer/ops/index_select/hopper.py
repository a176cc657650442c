"""Index scores on Hopper: FP4 keys become bf16 in registers, for wgmma, and are read once a group.

Up to four neighbouring tokens of a request share a read of their keys: one program multiplies 64
keys with all heads of all of them. Within candidate blocks, which differ from token to token, each
token reads its own. Dots of FP4 values are exact in bf16 products with fp32 sums; heads are added
in one fixed order. Knows nothing of how entries are chosen.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from functools import partial

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.arch import PAGE_TOKENS, Record
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.gluon_best import MOST_IDS, Seen, best
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select.reference import CandidateRule, Selection
from deepinfer.ops.index_select.triton import Scores, selected

_DIM = 128  # channels of keys and queries
_TILE = 64  # keys of one product
_GROUP = 4  # most tokens that share a read
_MANY = 1 << 21  # scores from which programs are long
_GROWN: gl.constexpr = gl.constexpr(2.0**63)  # keys and queries are 2^32 smaller; x + |x| is 2 x

# A word holds eight channels; each result holds nibbles n and n + 4 of it. A product with two bits
# puts a nibble's sign on bit 15 and its exponent and mantissa on bits 8..6, where they read 2^-126
# too small (multipliers have a pipe of their own, shifts to the right have not); the multiplier
# 2^(scale + 94) leaves a factor 2^-32.
_DECODE = gl.constexpr("""
{
.reg .b32 t, u;
shr.u32 u, $4, 8;
and.b32 t, $4, 0x000F000F;
mul.lo.u32 t, t, 0x1040;
and.b32 t, t, 0x81C081C0;
mul.rn.bf16x2 $0, t, $5;
and.b32 t, $4, 0x00F000F0;
mul.lo.u32 t, t, 0x104;
and.b32 t, t, 0x81C081C0;
mul.rn.bf16x2 $1, t, $5;
and.b32 t, u, 0x000F000F;
mul.lo.u32 t, t, 0x1040;
and.b32 t, t, 0x81C081C0;
mul.rn.bf16x2 $2, t, $5;
and.b32 t, u, 0x00F000F0;
mul.lo.u32 t, t, 0x104;
and.b32 t, t, 0x81C081C0;
mul.rn.bf16x2 $3, t, $5;
}
""")
_OPERANDS = gl.constexpr("=&r,=&r,=&r,=&r,r,r,r,r,r")


@gluon.jit
def _decoded(code, scales):
    """Bytes of codes [rows, 64], a word of four scales a row -> bf16 [rows, 128] divided by 2^32.

    Channels come in another order, the same for every row, so that no key leaves its thread.
    """
    rows: gl.constexpr = code.shape[0]
    group = gl.arange(0, 64, gl.SliceLayout(0, code.type.layout)) // 16
    size = (scales[:, None] >> (group * 8)[None, :]) & 255
    # Scales above 2^33 do not occur: their vectors would be far out of the range of activations.
    size = (gl.minimum(size, 160) + 94) * 0x00800080
    kinds: gl.constexpr = (gl.bfloat16, gl.bfloat16)
    low, high = gl.inline_asm_elementwise(_DECODE, _OPERANDS, [code, size], kinds, True, 4)
    both = gl.join(low, high).reshape([rows, 4, 4, 2, 2, 2])  # group, word, pair, half, result
    return both.permute((0, 2, 5, 3, 1, 4)).reshape([rows, 128])


@gluon.jit
def _load(codes, scales, tile, code_ptr, scale_ptr, key: gl.constexpr):
    """A tile of keys: words of codes [64, 16], words of scales [64].

    They travel as words: bytes would take a register each from one step to the next.
    """
    rows: gl.constexpr = gl.SliceLayout(1, key)
    word = gl.arange(0, 16, gl.SliceLayout(0, key))
    at = codes.index(tile).load(rows) * 4
    code = gl.load(code_ptr + (at[:, None] + word[None, :]))
    return code, gl.load(scale_ptr + scales.index(tile).load(rows))


@gluon.jit
def _scored(code, scale, query, weight, TOKENS: gl.constexpr, mma: gl.constexpr):
    """Scores fp32 [64, TOKENS] of a tile."""
    width: gl.constexpr = query.shape[0]
    first = gl.join(code.to(gl.uint8), (code >> 16).to(gl.uint8))
    second = gl.join((code >> 8).to(gl.uint8), (code >> 24).to(gl.uint8))
    code = gl.join(first, second).reshape([64, 64])
    rows: gl.constexpr = gl.SliceLayout(1, code.type.layout)
    a = _decoded(code, gl.convert_layout(scale, rows, assert_trivial=True))
    a = gl.convert_layout(a, gl.DotOperandLayout(0, mma, 2), assert_trivial=True)
    dots = gl.zeros([64, width], gl.float32, mma)
    dots = warpgroup_mma(a, query.permute((1, 0)), dots, is_async=True)
    dots = warpgroup_mma_wait(0, [dots])
    total = (dots + gl.abs(dots)) * weight[None, :]  # a maximum would have the pipe of the decoding
    return gl.sum(total.reshape([64, TOKENS, width // TOKENS]), 2)


@gluon.jit
def _store(
    total, which, ours, visible, first, out_ptr, best_ptr, columns,
    SIZE: gl.constexpr, PUBLISH: gl.constexpr,
):  # fmt: skip
    """Write scores of columns `first`... of a group's tokens, and the best of each SIZE of them."""
    layout: gl.constexpr = total.type.layout
    tokens: gl.constexpr = total.shape[1]
    column = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    total = gl.where(column[:, None] < visible[None, :], total, float("-inf"))
    inside = (column < columns)[:, None] & ours[None, :]
    gl.store(out_ptr + ((which * columns)[None, :] + column[:, None]), total, inside)
    if PUBLISH:
        best = gl.max(total.reshape([64 // SIZE, SIZE, tokens]), 1)
        shape: gl.constexpr = gl.SliceLayout(0, best.type.layout)
        seen, mine = gl.convert_layout(visible, shape), gl.convert_layout(ours, shape)
        group = first // SIZE + gl.arange(0, 64 // SIZE, gl.SliceLayout(1, best.type.layout))
        newest = (seen > 0)[None, :] & (group[:, None] == ((seen - 1) // SIZE)[None, :])
        groups = (columns + SIZE - 1) // SIZE
        best = gl.where(newest, float("inf"), best)
        to = (gl.arange(0, tokens, shape) * groups)[None, :] + group[:, None]
        gl.store(best_ptr + to, best, mine[None, :] & (group < groups)[:, None])


@gluon.jit
def _group(
    token, count, base, tiles, most, used, codes, scales, query_ptr, weight_ptr, code_ptr,
    scale_ptr, position_ptr, out_ptr, best_ptr, columns,
    HEADS: gl.constexpr, TOKENS: gl.constexpr, RATIO: gl.constexpr, LIMIT: gl.constexpr,
    SIZE: gl.constexpr, PUBLISH: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """Scores of `tiles` tiles from column `base` on, for `count` <= TOKENS tokens of a request."""
    width: gl.constexpr = TOKENS * HEADS
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    # A thread holds a group of two keys, as wgmma wants its left operand.
    key: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 16],
    )  # fmt: skip
    near, near_scale = _load(codes, scales, 0, code_ptr, scale_ptr, key)
    next, next_scale = _load(codes, scales, 1, code_ptr, scale_ptr, key)

    line: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    row = gl.arange(0, width, gl.SliceLayout(1, line))
    there = row // HEADS < count
    record = (token * HEADS + row) * 17  # words
    raw = query_ptr.to(gl.pointer_type(gl.uint8), bitcast=True)
    byte = gl.arange(0, 64, gl.SliceLayout(0, line))
    code = gl.load(raw + ((record * 4)[:, None] + byte[None, :]), there[:, None], 0)
    code = _decoded(code, gl.load(query_ptr + record + 16, there, 0))
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    query = gl.allocate_shared_memory(gl.bfloat16, [width, 128], swizzled, code)
    fence_async_shared()
    head = gl.arange(0, width, gl.SliceLayout(0, mma))
    weight = gl.load(weight_ptr + token * HEADS + head, head // HEADS < count, 0.0) * _GROWN

    nothing = gl.sum(gl.zeros([64, width], gl.float32, mma).reshape([64, TOKENS, HEADS]), 2)
    shape: gl.constexpr = gl.SliceLayout(0, nothing.type.layout)
    which = gl.arange(0, TOKENS, shape)
    ours = which < count
    visible = (gl.load(position_ptr + token + which, ours, -1).to(gl.int32) + 1) // RATIO
    if LIMIT > 0:  # columns are entries of blocks; those in use come first
        visible = gl.full([TOKENS], used, gl.int32, shape)
    out_ptr += token * columns
    best_ptr += token * ((columns + SIZE - 1) // SIZE)
    for tile in range(0, tiles, 2):
        to = base + tile * 64
        total = _scored(near, near_scale, query, weight, TOKENS, mma)
        ahead = gl.minimum(tile + 2, TILES - 1)
        near, near_scale = _load(codes, scales, ahead, code_ptr, scale_ptr, key)
        _store(total, which, ours, visible, to, out_ptr, best_ptr, columns, SIZE, PUBLISH)
        total = _scored(next, next_scale, query, weight, TOKENS, mma)
        ahead = gl.minimum(tile + 3, TILES - 1)
        next, next_scale = _load(codes, scales, ahead, code_ptr, scale_ptr, key)
        _store(total, which, ours, visible, to + 64, out_ptr, best_ptr, columns, SIZE, PUBLISH)
    for tile in range((tiles + 1) // 2 * 2, most):
        to = base + tile * 64
        _store(nothing, which, ours, visible, to, out_ptr, best_ptr, columns, SIZE, PUBLISH)


@gluon.jit(do_not_specialize=["table_width", "tokens"])
def _scores(
    query_ptr, weight_ptr, code_ptr, scale_ptr, position_ptr, start_ptr, end_ptr, row_ptr,
    table_ptr, block_ptr, out_ptr, best_ptr, tokens, columns, page_size, scale_page_size,
    table_width,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RATIO: gl.constexpr, LIMIT: gl.constexpr,
    SIZE: gl.constexpr, PUBLISH: gl.constexpr, GROUP: gl.constexpr, EACH: gl.constexpr,
    TILES: gl.constexpr,
):  # fmt: skip
    """Scores of TILES tiles of columns for the groups that begin among EACH tokens.

    Groups begin every GROUP tokens of a slice. Columns are entries in order, or those of the
    token's LIMIT blocks. `page_size` counts 16 bytes, `scale_page_size` words.
    """
    gdc_wait()
    gdc_launch_dependents()
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    code_places = gl.allocate_shared_memory(gl.int64, [TILES, 64], flat)
    scale_places = gl.allocate_shared_memory(gl.int64, [TILES, 64], flat)
    codes = code_places._reinterpret(gl.int64, [TILES, 64], line)
    scales = scale_places._reinterpret(gl.int64, [TILES, 64], line)
    wide: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [2, 2], [1, 0])
    base = gl.program_id(1) * (TILES * 64)
    most = gl.minimum((columns - base + 63) // 64, TILES)
    column = (gl.arange(0, TILES, gl.SliceLayout(1, wide)) * 64)[:, None]
    column = base + column + gl.arange(0, 64, gl.SliceLayout(0, wide))[None, :]
    for i in range(EACH):
        token = (gl.program_id(0) * EACH + i).to(gl.int64)
        position, count = 0, 0
        if token < tokens:
            position = gl.load(position_ptr + token).to(gl.int32)
            depth = (position - gl.load(start_ptr + token).to(gl.int32)) % GROUP
            if (depth == 0) | (token == 0):
                left = gl.load(end_ptr + token).to(gl.int32) - position
                count = gl.minimum(gl.minimum(GROUP - depth, left), (tokens - token).to(gl.int32))
        if count > 0:
            entry = column
            used = column < columns
            if LIMIT > 0:
                at = token * LIMIT + column // SIZE
                block = gl.load(block_ptr + at, used, -1).to(gl.int32)
                used = used & (block >= 0)
                entry = block * SIZE + column % SIZE
            used = used & (entry < (position + count) // RATIO)  # of the group's last token
            row = gl.load(row_ptr + token)
            page = gl.load(table_ptr + row * table_width + entry // PAGE, used, 0)
            within = gl.where(used, entry % PAGE, 0)
            gl.thread_barrier()  # the group before has read all places
            code_places.store(page * page_size + within * 4)
            scale_places.store(page * scale_page_size + within)
            last = gl.max(gl.max(gl.where(used, column - base + 1, 0), 1), 0)
            tiles = (last + 63) // 64
            if count == 1:
                _group(
                    token, count, base, tiles, most, base + last, codes, scales, query_ptr,
                    weight_ptr, code_ptr, scale_ptr, position_ptr, out_ptr, best_ptr, columns,
                    HEADS, 1, RATIO, LIMIT, SIZE, PUBLISH, TILES,
                )  # fmt: skip
            else:
                if GROUP > 1:
                    _group(
                        token, count, base, tiles, most, base + last, codes, scales, query_ptr,
                        weight_ptr, code_ptr, scale_ptr, position_ptr, out_ptr, best_ptr, columns,
                        HEADS, GROUP, RATIO, LIMIT, SIZE, PUBLISH, TILES,
                    )  # fmt: skip


def scores(
    queries: IndexQueries,
    batch: Batch,
    pages: PageViews,
    rows: slice,
    record: Record,
    *,
    within: Tensor | None = None,
    rule: CandidateRule | None = None,
    publish: bool = False,
) -> Scores:
    """As the portable kernel's `scores`; its arguments.

    Raises:
        ValueError: the blocks do not fill 64 entries evenly.
    """
    used = -(-batch.max_len // PAGE_TOKENS)
    size = 1 if rule is None else rule.size
    if _TILE % size:
        raise ValueError(f"index_select: blocks of {size} entries do not divide {_TILE}")
    limit = 0 if within is None else within.shape[1]
    columns = used * pages.entries
    if limit:  # blocks without any entry are trailing: more than there can be need no columns
        columns = min(limit, triton.cdiv(columns, size)) * size
    weights = queries.weights[rows]
    tokens, heads = weights.shape
    new = partial(torch.empty, dtype=torch.float32, device=weights.device)
    found = new((tokens, columns))
    groups = new((tokens, triton.cdiv(columns, size))) if publish else None
    alone = bool(limit) or batch.alone
    # Programs of sixteen tiles where they fill the device several times, else of eight.
    tiles = 16 if tokens * columns >= _MANY else 8
    each = 1 if alone or tokens < _GROUP * _GROUP else _GROUP
    _scores[(triton.cdiv(tokens, each), triton.cdiv(columns, tiles * _TILE))](
        queries.records[rows].view(torch.int32), weights, pages.key_codes.view(torch.int32),
        pages.key_scales.view(torch.int32), batch.positions[rows], batch.starts[rows],
        batch.ends[rows], batch.rows[rows], batch.page_table,
        batch.positions if within is None else within, found, found if groups is None else groups,
        tokens, columns, pages.key_codes.stride(0) // 16, pages.key_scales.stride(0) // 4,
        batch.page_table.stride(0), heads, pages.entries, pages.ratio, limit, size, publish,
        1 if alone else _GROUP, each, tiles, num_warps=4, launch_pdl=True,
        maxnreg=None if alone else 168,  # three programs a multiprocessor
    )  # fmt: skip
    return Scores(found, groups)


def index_select(
    queries: IndexQueries,
    batch: Batch,
    pages: PageViews,
    blocks: Tensor | None,
    *,
    topk: int,
    rule: CandidateRule | None,
    publish: bool,
    record: Record,
) -> Selection:
    """As the reference, for FP4 records of 128 channels; see the portable kernel."""

    def choose(
        found: Tensor, count: int, rows: slice, unit: int, width: int, within: Tensor | None
    ) -> Tensor:
        seen = Seen(batch.positions[rows], pages.ratio, unit, width)
        return best(found, count, within, width, seen)

    return selected(
        scores, choose, queries, batch, pages, blocks,
        topk=topk, rule=rule, publish=publish, record=record,
    )  # fmt: skip


def refuses(
    *,
    arch: str,
    quantised: bool,
    index_shape: tuple[int, int] = (0, 0),
    index_most: int = 0,
    **_facts: object,
) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes quantised records only"
    heads, dim = index_shape
    if dim != _DIM or heads not in (16, 32):
        return f"{heads} heads of {dim}; wants 16 or 32 of {_DIM}"
    return f"{index_most} ids of a row; at most {MOST_IDS}" if index_most > MOST_IDS else None
