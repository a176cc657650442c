"""What surrounds the products of the routed experts: sorting, input scales, the sum of rows.

Every place follows from the ids alone, so that nothing depends on which program is faster. Knows
nothing of weights.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _histogram(idx_ptr, first, last, EXPERTS: tl.constexpr, BINS: tl.constexpr):
    """How often each expert occurs among entries [first, last); the last bin takes no expert."""
    count = tl.zeros([BINS], tl.int32)
    for at in range(first, last, 1024):
        entry = at + tl.arange(0, 1024)
        expert = tl.load(idx_ptr + entry, entry < last, -1).to(tl.int32)
        count += tl.histogram(tl.where((expert < 0) | (expert >= EXPERTS), BINS - 1, expert), BINS)
    return count


@triton.jit
def _expert(idx_ptr, entry, entries, EXPERTS: tl.constexpr):
    """The expert of each entry; EXPERTS, the largest number, for none."""
    expert = tl.load(idx_ptr + entry, entry < entries, -1).to(tl.int32)
    return tl.where((expert < 0) | (expert > EXPERTS), EXPERTS, expert)


@triton.jit
def _compared(idx_ptr, entry, expert, entries, EXPERTS: tl.constexpr, SPAN: tl.constexpr):
    """Places of few entries: how many pairs (expert, entry) are smaller, 16 bits for an entry."""
    mine = expert * 65536 + entry
    place = tl.zeros_like(entry)
    for at in range(0, entries, SPAN):
        other = at + tl.arange(0, SPAN)
        pair = _expert(idx_ptr, other, entries, EXPERTS) * 65536 + other
        place += tl.sum((pair[None, :] < mine[:, None]).to(tl.int32), 1)
    return place


@triton.jit
def _counted(
    idx_ptr, start, entry, expert, entries, BLOCK: tl.constexpr, EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
):  # fmt: skip
    """Places of the BLOCK entries from `start` on, by counting what is before them."""
    bins = tl.arange(0, BINS)
    before = _histogram(idx_ptr, 0, tl.minimum(start, entries), EXPERTS, BINS)
    count = before + _histogram(idx_ptr, tl.minimum(start, entries), entries, EXPERTS, BINS)
    base = tl.cumsum(tl.where(bins < EXPERTS, count, 0)) - count + before
    local = tl.arange(0, BLOCK)
    again = _expert(idx_ptr, entry, entries, EXPERTS)
    earlier = (again[None, :] == expert[:, None]) & (local[None, :] < local[:, None])
    first = tl.sum(tl.where(bins[None, :] == expert[:, None], base[None, :], 0), 1)
    return first + tl.sum(earlier.to(tl.int32), 1)


@triton.jit
def _name_tiles(
    idx_ptr, expert_ptr, first_ptr, rows_ptr, tile, entries, tiles,
    EXPERTS: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Expert, first row and number of rows of some tiles; expert -1 of tiles that are not used."""
    bins = tl.arange(0, BINS)
    count = tl.where(bins < EXPERTS, _histogram(idx_ptr, 0, entries, EXPERTS, BINS), 0)
    offset = tl.cumsum(count) - count
    needed = (count + WIDTH - 1) // WIDTH
    end = tl.cumsum(needed)
    mine = (end[None, :] > tile[:, None]) & ((end - needed)[None, :] <= tile[:, None])
    owner = tl.sum(tl.where(mine, bins[None, :], 0), 1)
    part = tile - tl.sum(tl.where(mine, (end - needed)[None, :], 0), 1)
    size = tl.sum(tl.where(mine, count[None, :], 0), 1) - part * WIDTH
    used = tl.sum(mine.to(tl.int32), 1) > 0
    first = tl.sum(tl.where(mine, offset[None, :], 0), 1) + part * WIDTH
    tl.store(expert_ptr + tile, tl.where(used, owner, -1), tile < tiles)
    tl.store(first_ptr + tile, first, tile < tiles)
    tl.store(rows_ptr + tile, tl.minimum(size, WIDTH), tile < tiles)


@triton.jit
def _shared(codes_ptr, scale_ptr, token, part, K: tl.constexpr, COLUMNS: tl.constexpr):
    """COLUMNS FP8 codes of a token, moved to the largest of the four scales of 128 columns.

    A code whose scale is smaller becomes smaller by that power of two and is rounded again. That
    changes none that stays above 2^-6 and the others by 2^-10 at most, where the largest of the 128
    is 224 or more: 2^-17 of it. The unit's own sums have fewer bits. Returns columns [groups, 32]
    and codes, groups, which of them exist, and the scale.
    """
    group = part * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    inside = group < K // 32
    scale_ptr += token * (K // 32)
    own = tl.load(scale_ptr + group, inside, 0).to(tl.int32)
    most = own
    for other in tl.static_range(4):
        most = tl.maximum(most, tl.load(scale_ptr + group // 4 * 4 + other, inside, 0).to(tl.int32))
    down = (tl.maximum(own - most + 127, 0) << 23).to(tl.float32, bitcast=True)
    column = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    code = tl.load(codes_ptr + token * K + column, inside[:, None], 0)
    value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32) * down[:, None]
    size = (most << 23).to(tl.float32, bitcast=True)
    return column, value.to(tl.float8e4nv), group, inside, size


@triton.jit
def _share_scales(
    codes_ptr, scale_ptr, moved_ptr, size_ptr, token, part, tokens,
    K: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Codes and scales of a part of a token, in its own place."""
    token = token.to(tl.int64)
    column, code, group, inside, size = _shared(codes_ptr, scale_ptr, token, part, K, COLUMNS)
    tl.store(moved_ptr + token * K + column, code, inside[:, None])
    tl.store(size_ptr + group // 4 * tokens + token, size, inside & (group % 4 == 0))


@triton.jit(do_not_specialize=["stride"])
def spread(
    codes_ptr, scale_ptr, place_ptr, moved_ptr, size_ptr, stride,
    K: tl.constexpr, CHOICES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Codes and scales of a token to all its places; scales are fp32 [K / 128, stride]."""
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    column, code, group, inside, size = _shared(
        codes_ptr, scale_ptr, token, tl.program_id(1), K, COLUMNS
    )
    for choice in tl.static_range(CHOICES):
        place = tl.load(place_ptr + token * CHOICES + choice).to(tl.int64)
        here = inside & (place >= 0)
        tl.store(moved_ptr + place * K + column, code, here[:, None])
        tl.store(size_ptr + group // 4 * stride + place, size, here & (group % 4 == 0))


@triton.jit(do_not_specialize=["entries", "namers", "sorters", "tiles", "tokens"])
def prepare(
    codes_ptr, scale_ptr, moved_ptr, size_ptr, idx_ptr, order_ptr, place_ptr, expert_ptr, first_ptr,
    rows_ptr, entries, namers, sorters, tiles, tokens,
    K: tl.constexpr, EXPERTS: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Programs name TILES tiles each, then place BLOCK pairs, then share the input's scales.

    Tiles go to the experts that have pairs. SPAN: pairs compared at a time, 0 to count them by
    expert. The scales are fp32 [K / 128, tokens], so that those of neighbouring tokens are read
    together.
    """
    gdc_wait()
    gdc_launch_dependents()
    program = tl.program_id(0)
    if program < namers:
        tile = program * TILES + tl.arange(0, TILES)
        _name_tiles(
            idx_ptr, expert_ptr, first_ptr, rows_ptr, tile, entries, tiles, EXPERTS, BINS, WIDTH
        )
    elif program < namers + sorters:
        start = (program - namers) * BLOCK
        entry = start + tl.arange(0, BLOCK)
        chosen = _expert(idx_ptr, entry, entries, EXPERTS)
        if SPAN:
            place = _compared(idx_ptr, entry, chosen, entries, EXPERTS, SPAN)
        else:
            place = _counted(idx_ptr, start, entry, chosen, entries, BLOCK, EXPERTS, BINS)
        here = chosen < EXPERTS
        tl.store(place_ptr + entry, tl.where(here, place, -1), entry < entries)
        tl.store(order_ptr + place, entry, here)
    else:
        parts: tl.constexpr = (K + COLUMNS - 1) // COLUMNS
        number = program - namers - sorters
        _share_scales(
            codes_ptr, scale_ptr, moved_ptr, size_ptr, number // parts, number % parts, tokens,
            K, COLUMNS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def share_scales(
    codes_ptr, scale_ptr, moved_ptr, size_ptr, ready_ptr, tokens,
    K: tl.constexpr, WIDTH: tl.constexpr, EXPERTS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """The input's scales alone, [K / 128, WIDTH], 0 beyond the tokens; EXPERTS counters at zero.

    Few programs, so that those of the next kernel find multiprocessors and fetch weights; they may
    start at once, because they wait for the end of this one before they read anything else.
    """
    gdc_launch_dependents()
    gdc_wait()
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    token, part = group // (K // 32), group % (K // 32) // 4
    used = token < tokens
    own = tl.load(scale_ptr + group, used, 0).to(tl.int32)
    most = own
    for other in tl.static_range(4):
        scale = tl.load(scale_ptr + group // 4 * 4 + other, used, 0).to(tl.int32)
        most = tl.maximum(most, scale)
    down = (tl.maximum(own - most + 127, 0) << 23).to(tl.float32, bitcast=True)
    at = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    code = tl.load(codes_ptr + at, used[:, None], 0)
    value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32) * down[:, None]
    tl.store(moved_ptr + at, value.to(tl.float8e4nv), used[:, None])
    size = tl.where(used, (most << 23).to(tl.float32, bitcast=True), 0.0)
    tl.store(size_ptr + part * WIDTH + token, size, (token < WIDTH) & (group % 4 == 0))
    expert = tl.arange(0, triton.next_power_of_2(EXPERTS))
    tl.store(ready_ptr + expert, 0, (expert < EXPERTS) & (tl.program_id(0) == 0))


@triton.jit
def combine(
    y_ptr, place_ptr, out_ptr, SIZE: tl.constexpr, CHOICES: tl.constexpr, COLUMNS: tl.constexpr,
    EXPERTS: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """out[token] = sum of its rows in ascending place, hence in ascending expert id.

    With EXPERTS the places are expert ids, and row id * STRIDE + token is that pair's.
    """
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    choice = tl.arange(0, triton.next_power_of_2(CHOICES))
    none: tl.constexpr = EXPERTS if EXPERTS else 2147483647
    place = tl.load(place_ptr + token * CHOICES + choice, choice < CHOICES, -1).to(tl.int32)
    total = tl.zeros([COLUMNS], tl.float32)
    last = -1
    for _ in tl.static_range(CHOICES):
        last = tl.min(tl.where((place > last) & (place < none), place, none))
        row = last.to(tl.int64) * STRIDE + token if STRIDE else last.to(tl.int64)
        used = (last < none) & (column < SIZE)
        total += tl.load(y_ptr + row * SIZE + column, used, 0.0).to(tl.float32)
    tl.store(out_ptr + token * SIZE + column, total, column < SIZE)
