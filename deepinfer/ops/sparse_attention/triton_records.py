"""Records of a token's key list on Hopper: where they lie, and their decoding into shared memory.

A list is cut into parts of 64 slots, window records first, then selected entries. Codes travel as
32-bit words, four side by side a thread, and leave as pairs of bf16; the eight threads of a store
have eight rows, so that swizzled shared memory takes them without conflicts. Knows nothing of
queries.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

NOWHERE = gl.constexpr(-(1 << 62))  # place of a slot without a record

# Eight E2M1 codes to four pairs, times a pair of scales. A code is moved to where bf16 has exponent
# and mantissa, so that it reads 2^-126 too small.
_FP4 = gl.constexpr("""
{
.reg .b32 w, z, t;
shl.b32 w, $4, 4;
prmt.b32 z, $4, w, 0x0044;
shr.b32 t, z, 6;
and.b32 t, t, 0x01C001C0;
lop3.b32 t, z, 0x80008000, t, 0xEA;
mul.rn.bf16x2 $0, t, $5;
prmt.b32 z, $4, w, 0x1155;
shr.b32 t, z, 6;
and.b32 t, t, 0x01C001C0;
lop3.b32 t, z, 0x80008000, t, 0xEA;
mul.rn.bf16x2 $1, t, $5;
prmt.b32 z, $4, w, 0x2266;
shr.b32 t, z, 6;
and.b32 t, t, 0x01C001C0;
lop3.b32 t, z, 0x80008000, t, 0xEA;
mul.rn.bf16x2 $2, t, $5;
prmt.b32 z, $4, w, 0x3377;
shr.b32 t, z, 6;
and.b32 t, t, 0x01C001C0;
lop3.b32 t, z, 0x80008000, t, 0xEA;
mul.rn.bf16x2 $3, t, $5;
}
""")
# An E4M3 scale byte (never negative) to a pair of it times 2^110. Moved to where bf16 has exponent
# and mantissa it reads 2^-120 too small; 2^230 is 2^115 twice.
_FP4_SCALE = gl.constexpr("""
{
.reg .b32 t, c;
mul.lo.u32 t, $1, 0x00100010;
mov.b32 c, 0x79007900;
mul.rn.bf16x2 t, t, c;
mul.rn.bf16x2 $0, t, c;
}
""")
# Four E4M3 codes to two pairs, times an fp32 scale.
_FP8 = gl.constexpr("""
{
.reg .b16 a, b, h0, h1, h2, h3;
.reg .b32 x, y;
.reg .f32 f0, f1, f2, f3;
mov.b32 {a, b}, $2;
cvt.rn.f16x2.e4m3x2 x, a;
cvt.rn.f16x2.e4m3x2 y, b;
mov.b32 {h0, h1}, x;
mov.b32 {h2, h3}, y;
cvt.f32.f16 f0, h0;
cvt.f32.f16 f1, h1;
cvt.f32.f16 f2, h2;
cvt.f32.f16 f3, h3;
mul.f32 f0, f0, $3;
mul.f32 f1, f1, $3;
mul.f32 f2, f2, $3;
mul.f32 f3, f3, $3;
cvt.rn.bf16x2.f32 $0, f1, f0;
cvt.rn.bf16x2.f32 $1, f3, f2;
}
""")


@gluon.constexpr_function
def _spread(rows, words, warps, unit):
    """Layout [rows, words / unit, unit]: a thread has four words of a row, eight have eight rows.

    The other threads of a warp go along a row, the warps down, then along.
    """
    down = [1 << i for i in range(rows.bit_length() - 1)]
    along = [1 << i for i in range(2, words.bit_length() - 1)]
    lanes = [(r, 0) for r in down[:3]] + [(0, c) for c in along[:2]]
    down, along = down[3:], along[2:]
    while len(lanes) < 5:
        lanes.append((down.pop(0), 0))
    teams = []
    while len(teams) < warps.bit_length() - 1:
        teams.append((down.pop(0), 0) if down else (0, along.pop()) if along else (0, 0))
    own = [(0, 1), (0, 2)] + [(0, c) for c in along] + [(r, 0) for r in down]
    bases = [[[r, c // unit, c % unit] for r, c in part] for part in (own, lanes, teams)]
    return gl.DistributedLinearLayout(*bases, [], [rows, words // unit, unit])


@gluon.constexpr_function
def _rows(rows, words, warps):
    """The same as [rows, words]."""
    cube = _spread(rows, words, warps, words)
    bases = [[[r, c] for r, _, c in part] for part in (cube.reg_bases, cube.lane_bases)]
    teams = [[r, c] for r, _, c in cube.warp_bases]
    return gl.DistributedLinearLayout(*bases, teams, [], [rows, words])


@gluon.jit
def _recent(
    where, token, slot, WIDTH: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr
):  # fmt: skip
    """Places of the window records in `slot`s of the key list, and which of them are used."""
    record_ptr, ring_ptr, ring_slot, position_ptr, row_ptr, start_ptr, lower_ptr, slot_ptr = where
    position, start = gl.load(position_ptr + token), gl.load(start_ptr + token)
    first = gl.maximum(gl.maximum(gl.load(lower_ptr + token), position - WINDOW + 1), 0)
    ring_ptr += gl.load(slot_ptr + gl.load(row_ptr + token)) * ring_slot
    wanted = first + slot
    record: gl.constexpr = WIDTH + WIDTH // 32
    near = (token - position + wanted) * record
    far = ring_ptr.to(gl.int64) - record_ptr.to(gl.int64) + wanted % RING * record
    return gl.where(wanted >= start, near, far), (wanted <= position) & (slot < WINDOW)


@gluon.jit
def _selected(
    record_ptr, row_ptr, where, token, slot,
    WIDTH: gl.constexpr, IDS: gl.constexpr, ENTRIES: gl.constexpr,
):  # fmt: skip
    """Places of the entries in `slot`s of the selection, and which of them are used."""
    ids_ptr, latent_ptr, page_size, table_ptr, table_width = where
    chosen = gl.load(ids_ptr + token * IDS + slot, (slot >= 0) & (slot < IDS), -1)
    used = chosen >= 0
    table_ptr += gl.load(row_ptr + token) * table_width
    page = gl.load(table_ptr + chosen // ENTRIES, used, 0)
    start = latent_ptr.to(gl.int64) - record_ptr.to(gl.int64)
    return start + page * page_size + chosen % ENTRIES * (WIDTH // 2 + WIDTH // 16), used


@gluon.jit
def find(
    places, recent, selected, token, exists,
    WIDTH: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr, IDS: gl.constexpr,
    ENTRIES: gl.constexpr, RECENT: gl.constexpr, ALIGNED: gl.constexpr,
):  # fmt: skip
    """Note in shared memory where the records of a token's whole key list lie.

    A place is a number of steps of ALIGNED bytes behind this step's records; NOWHERE if unseen.
    `recent` and `selected` are pointers and strides, as the functions above take them.
    """
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    slot = gl.arange(0, places.shape[0], flat)
    at, used = _recent(recent, token, slot, WIDTH, WINDOW, RING)
    if IDS > 0:
        later = slot - RECENT * 64
        entry, chosen = _selected(
            recent[0], recent[4], selected, token, later, WIDTH, IDS, ENTRIES
        )  # fmt: skip
        at, used = gl.where(later < 0, at, entry), gl.where(later < 0, used, chosen)
    places.store(gl.where(used & exists, at // ALIGNED, NOWHERE))


@gluon.jit
def _words(record_ptr, place, COUNT: gl.constexpr, ALIGNED: gl.constexpr, layout: gl.constexpr):
    """The first COUNT words of the records at some places, zeros where there is none."""
    word = gl.arange(0, COUNT, gl.SliceLayout(0, layout))[None, :]
    used = (place != NOWHERE)[:, None]
    if ALIGNED >= 4:
        at = record_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
        return gl.load(at + (place * (ALIGNED // 4))[:, None] + word, used, 0)
    at = record_ptr.to(gl.pointer_type(gl.uint16), bitcast=True) + place[:, None] + 2 * word
    low, high = gl.load(at, used, 0).to(gl.int32), gl.load(at + 1, used, 0).to(gl.int32)
    return low | high << 16


@gluon.jit
def load(
    record_ptr, places, WINDOW: gl.constexpr, WIDTH: gl.constexpr, ALIGNED: gl.constexpr
):  # fmt: skip
    """Words and scale bytes of records, window records (FP8) or entries (FP4), as stored."""
    rows: gl.constexpr = places.shape[0]
    warps: gl.constexpr = gl.num_warps()
    count: gl.constexpr = WIDTH // 4 if WINDOW else WIDTH // 8
    layout: gl.constexpr = _rows(rows, count, warps)
    # One scale byte for eight words, or two, which travel together, for four.
    scales: gl.constexpr = gl.SliceLayout(2, _spread(rows, count, warps, 8 if WINDOW else 4))
    place = places.load(gl.SliceLayout(1, layout))
    words = _words(record_ptr, place, count, ALIGNED, layout)
    place = gl.convert_layout(place, gl.SliceLayout(1, scales))
    used = (place != NOWHERE)[:, None]
    group = gl.arange(0, WIDTH // 32, gl.SliceLayout(0, scales))[None, :]
    if WINDOW:
        scale = gl.load(record_ptr + WIDTH + (place * ALIGNED)[:, None] + group, used, 127)
    else:
        at = record_ptr.to(gl.pointer_type(gl.uint16), bitcast=True) + WIDTH // 4
        scale = gl.load(at + (place * (ALIGNED // 2))[:, None] + group, used, 0)
    return words, scale


@gluon.jit
def decode(words, scale, keys, WINDOW: gl.constexpr, WIDTH: gl.constexpr):
    """Write records as `load` gave them to `keys`, int32 [rows, WIDTH / 2], pairs of bf16."""
    rows: gl.constexpr = words.shape[0]
    if WINDOW:
        words = words.reshape([rows, WIDTH // 32, 8])
        # A scale of less than 2^-110 counts as nothing, as its value would.
        size = ((gl.maximum(scale.to(gl.int32), 16) - 16) << 23).to(gl.float32, bitcast=True)
        size = gl.convert_layout(size, gl.SliceLayout(2, words.type.layout), assert_trivial=True)
        pair: gl.constexpr = (gl.int32, gl.int32)
        a, b = gl.inline_asm_elementwise(
            _FP8, "=&r,=&r,r,f", [words, gl.expand_dims(size, 2)], pair, True, 1
        )
        keys.store(gl.join(a, b).reshape([rows, WIDTH // 2]))
    else:
        words = words.reshape([rows, WIDTH // 32, 2, 2])
        both = scale.to(gl.int32)
        both = gl.join(both & 255, both >> 8)
        size = gl.inline_asm_elementwise(_FP4_SCALE, "=r,r", [both], gl.int32, True, 1)
        size = gl.convert_layout(size, gl.SliceLayout(3, words.type.layout), assert_trivial=True)
        four: gl.constexpr = (gl.int32, gl.int32, gl.int32, gl.int32)
        a, b, c, d = gl.inline_asm_elementwise(
            _FP4, "=&r,=&r,=&r,=&r,r,r", [words, gl.expand_dims(size, 3)], four, True, 1
        )
        keys.store(gl.join(gl.join(a, c), gl.join(b, d)).reshape([rows, WIDTH // 2]))
