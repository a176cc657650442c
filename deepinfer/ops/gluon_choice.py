"""Device functions that choose the best of numbers: ids ascending, ties to the lowest.

Numbers lie as [warps, n], a thread's being neighbours. The last key that is taken is found by
quartering a range of keys; everything is counted in integers, so that a choice depends on nothing
but the numbers. Knows nothing of how rows are read.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_NONE = gl.constexpr(-0x80000000)  # key of what cannot be chosen


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _one(values):
    """Values of warps [warps] where every warp has all of them, one a thread."""
    return gl.convert_layout(values, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))


@gluon.jit
def sum_of(values):
    """Sum of [warps, n]."""
    return gl.sum(_one(gl.sum(values, 1)), 0)


@gluon.jit
def most_of(values):
    """Maximum of [warps, n]."""
    return gl.max(_one(gl.max(values, 1)), 0)


@gluon.jit
def key_of(score):
    """fp32 -> int32 in the same order; both zeros are one."""
    bits = (score + 0.0).to(gl.int32, bitcast=True)
    return gl.where(score > float("-inf"), bits ^ ((bits >> 31) & 0x7FFFFFFF), _NONE)


@gluon.jit
def _reach(key, first, second, third):
    """How many keys reach each of three bounds. At most 1023 a warp and 65,535 may."""
    each = (key >= first).to(gl.int32) + ((key >= second).to(gl.int32) << 10)
    part = _one(gl.sum(each + ((key >= third).to(gl.int32) << 20), 1))
    both = gl.sum((part & 1023) + ((part << 6) & 0x3FF0000), 0)
    return both & 0xFFFF, both >> 16, gl.sum(part >> 20, 0)


@gluon.jit
def score_of(key):
    """The number of a key; of a single one."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(gl.float32, bitcast=True)


@gluon.jit
def _bounds(low, high, by_value, GRAIN: gl.constexpr):
    """Three ascending keys above `low`, at most `high`, that quarter the keys or the numbers.

    Keys lack their GRAIN low bits.
    """
    quarter = ((high - low).to(gl.uint32, bitcast=True) >> 2).to(gl.int32, bitcast=True)
    first, second, third = low + quarter + 1, low + 2 * quarter + 1, low + 3 * quarter + 1
    if by_value:
        least = score_of(low << GRAIN)
        step = (score_of(high << GRAIN) - least) * 0.25
        first = gl.minimum(gl.maximum(key_of(least + step) >> GRAIN, low + 1), high)
        second = gl.minimum(gl.maximum(key_of(least + 2 * step) >> GRAIN, first), high)
        third = gl.minimum(gl.maximum(key_of(least + 3 * step) >> GRAIN, second), high)
    return first, second, third


@gluon.jit
def _narrowed(low, high, one, two, three, first, second, third, count, slack):
    """The quarter in which the `count`-th key lies; its lower end if that is near enough."""
    low = gl.where(one >= count, first, low)
    high = gl.where(one >= count, high, first - 1)
    found = gl.where(one >= count, one, count + slack + 1)
    high = gl.where((one >= count) & (two < count), second - 1, high)
    low, found = gl.where(two >= count, second, low), gl.where(two >= count, two, found)
    high = gl.where((two >= count) & (three < count), third - 1, high)
    low, found = gl.where(three >= count, third, low), gl.where(three >= count, three, found)
    return low, gl.where(found <= count + slack, low, high)


@gluon.jit
def least_of(key):
    """The least key of what can be chosen."""
    return gl.min(_one(gl.min(gl.where(key > _NONE, key, 0x7FFFFFFF), 1)), 0)


@gluon.jit
def cut(key, low, count, slack, GRAIN: gl.constexpr, BOTH: gl.constexpr):
    """A key that `count` to `count + slack` of [warps, n] reach, more if equal ones demand it.

    At least `count` reach `low`. With BOTH, numbers and keys are quartered in turn: one of them has
    few steps. Numbers have GRAIN low bits that are 0, so that those of keys are all 0 or all 1.
    """
    key = key >> GRAIN
    low = low >> GRAIN
    high = most_of(key)
    by_value = BOTH
    while low < high:
        first, second, third = _bounds(low, high, by_value, GRAIN)
        one, two, three = _reach(key, first, second, third)
        low, high = _narrowed(low, high, one, two, three, first, second, third, count, slack)
        by_value = BOTH and not by_value
    return (low << GRAIN) | ((low >> 31) & ((1 << GRAIN) - 1))


@gluon.jit
def _before(values):
    """Sums of all values before each one of [warps, n], a thread's being neighbours; of all."""
    inner = gl.associative_scan(values, 1, _add) - values
    warp = gl.sum(values, 1)
    each = _one(warp)
    outer = gl.convert_layout(gl.associative_scan(each, 0, _add) - each, warp.type.layout)
    return inner + outer[:, None], gl.sum(each, 0)


@gluon.jit
def piece(start, N: gl.constexpr):
    """Numbers of N columns from `start` on as [warps, n], a thread's being neighbours."""
    warps: gl.constexpr = gl.num_warps()
    each: gl.constexpr = N // (warps * 32)
    layout: gl.constexpr = gl.BlockedLayout([1, each], [1, 32], [warps, 1], [1, 0])
    column = start + (gl.arange(0, warps, gl.SliceLayout(1, layout)) * (N // warps))[:, None]
    return column + gl.arange(0, N // warps, gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def dealt(many, N: gl.constexpr):
    """Numbers of `many` <= N things in order, as many for each warp, as [warps, n]; -1 for none."""
    warps: gl.constexpr = gl.num_warps()
    layout: gl.constexpr = gl.BlockedLayout([1, N // (warps * 32)], [1, 32], [warps, 1], [1, 0])
    share = (many + warps - 1) // warps
    index = gl.arange(0, N // warps, gl.SliceLayout(0, layout))[None, :]
    place = (gl.arange(0, warps, gl.SliceLayout(1, layout)) * share)[:, None] + index
    return gl.where((index < share) & (place < many), place, -1)


@gluon.jit
def _write(
    score, column, last, left, taken, equals, block_ptr, id_ptr, value_ptr,
    COUNT: gl.constexpr, LIMIT: gl.constexpr, SIZE: gl.constexpr, VALUES: gl.constexpr,
):  # fmt: skip
    """Write the ids of columns above `last` and of its first `left` equals, in their order.

    A negative `left`: as many as make COUNT ids, if these are all columns.
    `taken` ids and `equals` equals came before; returns both for what follows.
    """
    key = key_of(score)
    over, equal = key > last, key == last
    both = over.to(gl.int32) + (equal.to(gl.int32) << 16)
    before, total = _before(both)
    left = gl.where(left < 0, COUNT - (total & 0xFFFF), left)
    same = equals + (before >> 16)
    take = over | (equal & (same < left))
    place = taken + (before & 0xFFFF) + gl.minimum(same, left) - gl.minimum(equals, left)
    ids = column.to(gl.int64)
    if LIMIT > 0:
        ids = gl.load(block_ptr + column // SIZE, take, 0) * SIZE + column % SIZE
    gl.store(id_ptr + place, ids, take)
    if VALUES:
        gl.store(value_ptr + place, score, take)
    now = equals + (total >> 16)
    return taken + (total & 0xFFFF) + gl.minimum(now, left) - gl.minimum(equals, left), now


@gluon.jit
def _rest(
    taken, id_ptr, value_ptr, COUNT: gl.constexpr, PADDED: gl.constexpr, VALUES: gl.constexpr
):
    """Fill what is left of the COUNT places."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    place = gl.arange(0, PADDED, layout)
    rest = (place >= taken) & (place < COUNT)
    gl.store(id_ptr + place, gl.full([PADDED], -1, gl.int64, layout), rest)
    if VALUES:
        nothing = gl.full([PADDED], float("-inf"), gl.float32, layout)
        gl.store(value_ptr + place, nothing, rest)


@gluon.jit
def finish(
    score, column, low, many, block_ptr, id_ptr, value_ptr,
    COUNT: gl.constexpr, PADDED: gl.constexpr, LIMIT: gl.constexpr, SIZE: gl.constexpr,
    VALUES: gl.constexpr, GRAIN: gl.constexpr,
):  # fmt: skip
    """Choose from `many` candidates among [warps, n]; if more than COUNT, COUNT reach key `low`."""
    key = key_of(score)
    last = gl.to_tensor(-0x7FFFFFFF)
    if many > COUNT:
        # Numbers of 16 bits that reach a bound are few.
        last = cut(key, low, COUNT, 0, GRAIN, GRAIN == 0)
    taken, equals = _write(
        score, column, last, -1, 0, 0, block_ptr, id_ptr, value_ptr, COUNT, LIMIT, SIZE, VALUES
    )
    _rest(taken, id_ptr, value_ptr, COUNT, PADDED, VALUES)


@gluon.jit
def choose_any(
    score_ptr, block_ptr, id_ptr, value_ptr, first, end,
    COUNT: gl.constexpr, PADDED: gl.constexpr, LIMIT: gl.constexpr, SIZE: gl.constexpr,
    VALUES: gl.constexpr,
):  # fmt: skip
    """Choose from columns `first` to `end`, whatever they are: each count reads them all."""
    N: gl.constexpr = 256 * gl.num_warps()
    low, high, finite, by_value = 0x7FFFFFFF, -0x80000000, 0, True
    for start in range(first, end, N):
        column = piece(start, N)
        key = key_of(gl.load(score_ptr + column, column < end, float("-inf")).to(gl.float32))
        low, high = gl.minimum(low, least_of(key)), gl.maximum(high, most_of(key))
        finite += sum_of((key > _NONE).to(gl.int32))
    if finite <= COUNT:
        low = gl.minimum(low, high)
        high = low
    while low < high:
        one, two, three = _bounds(low, high, by_value, 0)
        by_value = not by_value
        over, more, most = 0, 0, 0
        for start in range(first, end, N):
            column = piece(start, N)
            score = gl.load(score_ptr + column, column < end, float("-inf")).to(gl.float32)
            some = _reach(key_of(score), one, two, three)
            over, more, most = over + some[0], more + some[1], most + some[2]
        low, high = _narrowed(low, high, over, more, most, one, two, three, COUNT, 0)
    last = gl.maximum(low, _NONE + 1)
    over = 0
    for start in range(first, end, N):
        column = piece(start, N)
        score = gl.load(score_ptr + column, column < end, float("-inf")).to(gl.float32)
        over += sum_of((key_of(score) > last).to(gl.int32))
    taken, equals = 0, 0
    for start in range(first, end, N):
        column = piece(start, N)
        score = gl.load(score_ptr + column, column < end, float("-inf")).to(gl.float32)
        taken, equals = _write(
            score, column, last, COUNT - over, taken, equals, block_ptr, id_ptr, value_ptr,
            COUNT, LIMIT, SIZE, VALUES,
        )  # fmt: skip
    _rest(taken, id_ptr, value_ptr, COUNT, PADDED, VALUES)


@gluon.jit
def ones(word):
    """Set bits of each word."""
    return gl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [word], gl.int32, True, 1)


@gluon.jit
def listed(words, index, list_ptr, ROOM: gl.constexpr):
    """Write the numbers of set bits, in order, and return how many there are.

    Words [warps, n] with their numbers, a thread's being neighbours; the list has ROOM places.
    """
    count = ones(words)
    place, total = _before(count)
    left = most_of(count)
    while left > 0:
        bit = ones((words & -words) - 1)
        gl.store(list_ptr + place, index * 32 + bit, (words != 0) & (place < ROOM))
        words = words & (words - 1)
        place += 1
        left -= 1
    return total
