"""Kernels that find where top-k and top-p cut a law off, without a sort.

A histogram over the leading bits of the values finds the group of places that a cut falls into; a
bisection among the few ids of that group finds the place itself. Places and masses are integers:
the order in which ids are added or listed does not matter. Knows nothing of noise.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.sample.triton_numbers import ID_BITS, key_of, mass_of

BINS = 2048
_ID_BITS: tl.constexpr = tl.constexpr(ID_BITS)
_ID_MASK: tl.constexpr = tl.constexpr((1 << ID_BITS) - 1)
# A bin takes sizes (bits of a value without its sign) that agree in all but the last 17 bits:
# 64 bins an octave from 2^-8 on; what is smaller or larger goes to the bins at the ends.
_BIN_SHIFT: tl.constexpr = tl.constexpr(17)
_FIRST_BIN: tl.constexpr = tl.constexpr(119 << 6)
_LAST_BIN: tl.constexpr = tl.constexpr(BINS - 1)
_LARGEST: tl.constexpr = tl.constexpr(0x7F7FFFFF)  # size of the least finite value
_FAR: tl.constexpr = tl.constexpr(0x41A00000)  # bits of 20
_NO_KEY: tl.constexpr = tl.constexpr((1 << 62) - 1)
_LISTED: tl.constexpr = tl.constexpr(2048)  # keys at hand in a bisection


@triton.jit
def possible(logit_ptr, mask_ptr, ids, VOCAB: tl.constexpr, MASKED: tl.constexpr):
    """Logits at `ids` of one position, -inf where there is none or its mask forbids it."""
    value = tl.load(logit_ptr + ids, ids < VOCAB, float("-inf"))
    if MASKED:
        word = tl.load(mask_ptr + ids // 32, ids < VOCAB, 0)
        value = tl.where(((word >> (ids % 32)) & 1) != 0, value, float("-inf"))
    return value


@triton.jit
def highest(high_ptr, at, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """Largest logit of a position, from its chunks."""
    chunk = tl.arange(0, PADDED)
    return tl.max(tl.load(high_ptr + at * CHUNKS + chunk, chunk < CHUNKS, float("-inf")), 0)


@triton.jit
def _keys(
    logit_ptr, mask_ptr, ids, high, temperature, VOCAB: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Places of `ids` of one position, `high` its largest logit; impossible ids come last."""
    value = possible(logit_ptr, mask_ptr, ids, VOCAB, MASKED)
    return key_of(tl.div_rn(value - high, temperature), ids)


@triton.jit
def _far(key):
    """Places with less than e^-20 of the likeliest id's mass."""
    return key >= (_FAR << _ID_BITS)


@triton.jit
def _bin(key, top_k):
    """Bin of a place; places ascend from bin to bin. Without top-k the far ones share the last:
    all of them together weigh so little that top-p hardly ever cuts among them."""
    found = (key >> (_ID_BITS + _BIN_SHIFT)).to(tl.int32) - _FIRST_BIN
    found = tl.minimum(tl.maximum(found, 0), _LAST_BIN)
    return tl.where((top_k == 0) & _far(key), _LAST_BIN, found)


@triton.jit
def _hopeful(high_ptr, at, top_k, temperature, end, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """A place behind which no id of the top-k lies: so many chunks have a better one."""
    chunk = tl.arange(0, PADDED)
    best = tl.load(high_ptr + at * CHUNKS + chunk, chunk < CHUNKS, float("-inf"))
    as_good = tl.sum((best[None, :] >= best[:, None]).to(tl.int32), 1)
    least = tl.max(tl.where(as_good >= top_k, best, float("-inf")), 0)
    last = key_of(tl.div_rn(least - tl.max(best, 0), temperature), _ID_MASK)
    return tl.where((top_k > 0) & (top_k <= CHUNKS), tl.minimum(end, last), end)


@triton.jit
def _last_key(log_min_p):
    """Last place that min_p leaves, and never an impossible one."""
    size = log_min_p.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    size = tl.minimum(size, _LARGEST).to(tl.int64)
    return (size << _ID_BITS) | _ID_MASK


@triton.jit
def _active(greedy_ptr, top_k, top_p, row, STAGE: tl.constexpr):
    """Whether a row cuts in a stage: first top-k, or top-p without it; then top-p after top-k."""
    drawn = tl.load(greedy_ptr + row) == 0
    by_count, by_mass = top_k > 0, top_p < 1
    return drawn & ((by_count | by_mass) if STAGE == 0 else (by_count & by_mass))


@triton.jit
def histogram(
    logit_ptr, mask_ptr, high_ptr, bin_ptr, row_ptr, greedy_ptr, temperature_ptr, log_min_p_ptr,
    top_k_ptr, top_p_ptr, masses,
    VOCAB: tl.constexpr, WORDS: tl.constexpr, MASKED: tl.constexpr, CHUNKS: tl.constexpr,
    PADDED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Adds the ids of one chunk, and `masses` behind them their masses, to their bins."""
    gdc_wait()
    gdc_launch_dependents()
    at, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(row_ptr + at)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    high = highest(high_ptr, at, CHUNKS, PADDED)
    if _active(greedy_ptr, top_k, top_p, row, 0) & (high > float("-inf")):
        temperature, end = tl.load(temperature_ptr + row), _last_key(tl.load(log_min_p_ptr + row))
        end = _hopeful(high_ptr, at, top_k, temperature, end, CHUNKS, PADDED)
        bin_ptr += at * BINS
        far = tl.full([], 0, tl.int64)
        for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            key = _keys(
                logit_ptr + at * VOCAB, mask_ptr + at * WORDS, ids, high, temperature,
                VOCAB, MASKED,
            )  # fmt: skip
            here, bins = key <= end, bin_ptr + _bin(key, top_k)
            if top_k > 0:
                tl.atomic_add(bins, tl.full([BLOCK], 1, tl.int64), here, sem="relaxed")
            if top_p < 1:
                mass = tl.where(here, mass_of(key), 0)
                aside = (top_k == 0) & _far(key)
                far += tl.sum(tl.where(aside, mass, 0), 0)
                tl.atomic_add(bins + masses, mass, (mass > 0) & (aside == 0), sem="relaxed")
        if far > 0:
            tl.atomic_add(bin_ptr + masses + BINS - 1, far, sem="relaxed")


@triton.jit
def _wanted(top_p, total):
    """The mass that top_p wants of `total`, rounded up; it may exceed the total."""
    share = top_p * total.to(tl.float64)
    whole = share.to(tl.int64)
    return whole + (whole.to(tl.float64) < share).to(tl.int64)


@triton.jit
def _goal(
    bin_ptr, total_ptr, at, top_k, top_p, masses, STAGE: tl.constexpr, BINS: tl.constexpr
):  # fmt: skip
    """Where the weight of places reaches what a stage wants: bin (BINS: nowhere), weight before.

    Returns:
        bin, weight before it, wanted weight, whether ids count (else their masses).
    """
    by_count = (top_k > 0) & (STAGE == 0)
    weights = tl.load(
        bin_ptr + tl.where(by_count, 0, masses) + at * BINS + tl.arange(0, BINS)
    )  # fmt: skip
    total = tl.sum(weights, 0)
    if STAGE == 1:
        total = tl.load(total_ptr + at)
    wanted = tl.where(by_count, top_k, _wanted(top_p, total))
    reached = tl.cumsum(weights, 0)
    target = tl.sum((reached < wanted).to(tl.int32), 0)
    # What top-k has left may be less than what all reach: nothing more is cut off then.
    target = tl.where(by_count | (wanted <= total), target, BINS)
    return target, tl.max(tl.where(reached < wanted, reached, 0), 0), wanted, by_count


@triton.jit
def enlist(
    logit_ptr, mask_ptr, high_ptr, bin_ptr, list_ptr, length_ptr, end_ptr, total_ptr, row_ptr,
    greedy_ptr, temperature_ptr, log_min_p_ptr, top_k_ptr, top_p_ptr, masses,
    VOCAB: tl.constexpr, WORDS: tl.constexpr, MASKED: tl.constexpr, CHUNKS: tl.constexpr,
    PADDED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
    STAGE: tl.constexpr,
):  # fmt: skip
    """Lists the places of one chunk that lie in the bin of a stage's cut, in any order."""
    gdc_wait()
    gdc_launch_dependents()
    at, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(row_ptr + at)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    if _active(greedy_ptr, top_k, top_p, row, STAGE):
        target, _, _, _ = _goal(bin_ptr, total_ptr, at, top_k, top_p, masses, STAGE, BINS)
        high, temperature = highest(high_ptr, at, CHUNKS, PADDED), tl.load(temperature_ptr + row)
        end = _last_key(tl.load(log_min_p_ptr + row))
        length_ptr += 2 * at + STAGE
        list_ptr += at * VOCAB
        for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            key = _keys(
                logit_ptr + at * VOCAB, mask_ptr + at * WORDS, ids, high, temperature,
                VOCAB, MASKED,
            )  # fmt: skip
            here = (key <= end) & (_bin(key, top_k) == target)
            if tl.max(here.to(tl.int32), 0) > 0:
                place = tl.atomic_add(
                    length_ptr + tl.zeros_like(ids), tl.full([BLOCK], 1, tl.int32), here,
                    sem="relaxed",
                )  # fmt: skip
                tl.store(list_ptr + place, key, here)


@triton.jit
def _weight(key, MASS: tl.constexpr):
    return mass_of(key) if MASS else tl.full(key.shape, 1, tl.int64)


@triton.jit
def _up_to(list_ptr, length, first, weight, last, MASS: tl.constexpr):
    """Weight of the listed keys <= last; `first` and `weight` are those at hand."""
    total = tl.sum(tl.where(first <= last, weight, 0), 0)
    for start in range(_LISTED, length, _LISTED):
        place = start + tl.arange(0, _LISTED)
        key = tl.load(list_ptr + place, place < length, _NO_KEY)
        total += tl.sum(tl.where(key <= last, _weight(key, MASS), 0), 0)
    return total


@triton.jit
def _bisect(list_ptr, length, first, end, before, wanted, MASS: tl.constexpr):
    """The first listed place up to which the weight reaches `wanted`."""
    weight = _weight(first, MASS)
    low = tl.where(length > _LISTED, 0, tl.min(first, 0))
    top = tl.where(length > _LISTED, end, tl.max(tl.where(first == _NO_KEY, 0, first), 0))
    while low < top:
        middle = low + (top - low) // 2
        enough = before + _up_to(list_ptr, length, first, weight, middle, MASS) >= wanted
        top = tl.where(enough, middle, top)
        low = tl.where(enough, low, middle + 1)
    return low


@triton.jit
def settle(
    bin_ptr, list_ptr, length_ptr, end_ptr, total_ptr, row_ptr, greedy_ptr, log_min_p_ptr,
    top_k_ptr, top_p_ptr, masses,
    VOCAB: tl.constexpr, BINS: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """The last place that a stage leaves of a position; the first also notes the mass left."""
    gdc_wait()
    gdc_launch_dependents()
    at = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + at)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    end = _last_key(tl.load(log_min_p_ptr + row))
    if STAGE == 1:
        end = tl.load(end_ptr + at)
    if _active(greedy_ptr, top_k, top_p, row, STAGE):
        target, before, wanted, by_count = _goal(
            bin_ptr, total_ptr, at, top_k, top_p, masses, STAGE, BINS
        )
        length = tl.load(length_ptr + 2 * at + STAGE)
        list_ptr += at * VOCAB
        place = tl.arange(0, _LISTED)
        first = tl.load(list_ptr + place, place < length, _NO_KEY)
        if target < BINS:
            if by_count:
                end = _bisect(list_ptr, length, first, end, before, wanted, False)
            else:
                end = _bisect(list_ptr, length, first, end, before, wanted, True)
        if by_count & (top_p < 1):
            bins = tl.arange(0, BINS)
            mass = tl.load(bin_ptr + masses + at * BINS + bins)
            total = tl.sum(tl.where(bins < target, mass, 0), 0)
            total += _up_to(list_ptr, length, first, mass_of(first), end, True)
            tl.store(total_ptr + at, total)
    tl.store(end_ptr + at, end)
