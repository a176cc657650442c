"""Keys and queries of sparse attention, copied into shared memory by one group of warps.

Keys lie decoded in memory as rows of bf16: of the ring of a slice, of the slice itself, of entries.
Knows nothing of products.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_wait

THREADS = gl.constexpr(128)  # of the group


@gluon.jit
def _find(
    position_ptr, start_ptr, lower_ptr, ids_ptr, token, begin, end,
    SLOTS: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr, IDS: gl.constexpr,
    RECENT: gl.constexpr,
):  # fmt: skip
    """Rows of a token's whole key list, -1 where there is no key."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    slot = gl.arange(0, SLOTS, flat)
    position, start = gl.load(position_ptr + token), gl.load(start_ptr + token)
    first = gl.maximum(gl.maximum(gl.load(lower_ptr + token), position - WINDOW + 1), 0)
    wanted = first + slot
    row = gl.where(wanted >= start, RING + token - begin - position + wanted, wanted % RING)
    used = (wanted <= position) & (slot < WINDOW)
    if IDS > 0:
        later = slot - RECENT * 64
        chosen = gl.load(ids_ptr + token * IDS + later, (later >= 0) & (later < IDS), -1)
        row = gl.where(later < 0, row, RING + end - begin + chosen)
        used = gl.where(later < 0, used, chosen >= 0)
    return gl.where(used, row, -1).to(gl.int32)


@gluon.jit
def _copy(to, from_ptr, row, PITCH: gl.constexpr):
    """Start to copy rows, zeros for those below 0."""
    column = gl.arange(0, to.shape[1], gl.SliceLayout(0, row.type.layout.parent))
    at = from_ptr + ((gl.maximum(row, 0) * PITCH)[:, None] + column[None, :])
    async_copy.async_copy_global_to_shared(to, at, mask=(row >= 0)[:, None])


@gluon.jit
def bring(
    q, keys, rows, full, free, q_full, q_free, q_ptr, key_ptr, ids_ptr,
    position_ptr, start_ptr, lower_ptr, begin, end,
    HEADS: gl.constexpr, WIDTH: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr,
    IDS: gl.constexpr, RECENT: gl.constexpr, PARTS: gl.constexpr, SPACE: gl.constexpr,
):  # fmt: skip
    """Copy the queries of every token and the keys of every part, half of the channels at a time.

    Rows are also noted for the groups that multiply: they mask slots without a key. Lists of two
    tokens fit, since a token's copies start when the token before the last one has been multiplied.
    """
    own: gl.constexpr = WIDTH // 2
    lists = rows._reinterpret(gl.int32, [2, SPACE * 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    near: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    head = gl.program_id(1) * 64 + gl.arange(0, 64, gl.SliceLayout(1, near))
    head = gl.where(head < HEADS, head, -1)
    turn, number = 0, 0
    gdc_wait()
    for index in range(begin + gl.program_id(0), end, gl.num_programs(0)):
        token = index.to(gl.int64)
        found = _find(
            position_ptr, start_ptr, lower_ptr, ids_ptr, token, begin, end,
            SPACE * 64, WINDOW, RING, IDS, RECENT,
        )  # fmt: skip
        mbarrier.wait(q_free, number & 1 ^ 1)
        for half in gl.static_range(2):
            _copy(q.index(half), q_ptr + token * (HEADS * WIDTH) + half * own, head, WIDTH)
        async_copy.mbarrier_arrive(q_full, increment_count=False)
        lists.index(number % 2).store(found)
        gl.thread_barrier()
        for part in range(PARTS):
            row = rows.index(number % 2 * SPACE + part).load(gl.SliceLayout(1, near))
            for half in gl.static_range(2):
                at = turn % 2 * 2 + half
                mbarrier.wait(free.index(at), turn // 2 & 1 ^ 1)
                _copy(keys.index(at), key_ptr + half * own, row, WIDTH)
                async_copy.mbarrier_arrive(full.index(at), increment_count=False)
            turn += 1
        number += 1  # noqa: SIM113 - the loop is compiled
    async_copy.wait_group(0)  # a program must not end before its copies
