"""What follows the compressor's products, one program a token: pool, norm, key, rotate, store.

A token's bits stand alone: no program reads what another one writes. Knows nothing of how the
products were made but that their sums lie in segments.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.index_inputs.triton import fp4_code


@triton.jit
def _sums(part_ptr, tokens, token, OUT: tl.constexpr, WIDTH: tl.constexpr, SEGMENTS: tl.constexpr):
    """Sum of the segments of WIDTH columns of a token, first to last."""
    column = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    for s in tl.static_range(SEGMENTS):
        total += tl.load(part_ptr + (s * tokens + token).to(tl.int64) * OUT + column)
    return total


@triton.jit
def _normed(x, weight_ptr, eps, N: tl.constexpr):
    """RMSNorm of bf16-rounded fp32 values; fp32, rounded to bf16."""
    weight = tl.load(weight_ptr + tl.arange(0, N)).to(tl.float32)
    return (weight * (x * tl.rsqrt(tl.sum(x * x, 0) / N + eps))).to(tl.bfloat16).to(tl.float32)


@triton.jit
def _turned(x, position, freq_ptr, N: tl.constexpr, ROTATED: tl.constexpr):
    """Even and odd channels of a vector whose last ROTATED pairs turn; rounded to bf16.

    Cosine and sine are taken in float64 and rounded once, as the reference does.
    """
    pair = tl.arange(0, N // 2) - (N // 2 - ROTATED)
    rotates = pair >= 0
    angle = position.to(tl.float32) * tl.load(freq_ptr + pair, rotates, 0.0)
    cos = tl.cos(angle.to(tl.float64)).to(tl.float32)
    sin = tl.sin(angle.to(tl.float64)).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (N // 2, 2)))
    first = tl.where(rotates, even * cos - odd * sin, even)
    second = tl.where(rotates, even * sin + odd * cos, odd)
    return first.to(tl.bfloat16).to(tl.float32), second.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _group_sizes(even, odd, PAIRS: tl.constexpr, GROUP: tl.constexpr):
    """Largest magnitude of each group of GROUP pairs."""
    size = tl.maximum(tl.abs(even), tl.abs(odd))
    return tl.max(tl.reshape(size, (PAIRS // GROUP, GROUP)), 1)


@triton.jit
def _divided(x, by, PAIRS: tl.constexpr, GROUP: tl.constexpr):
    quotient = tl.div_rn(*tl.broadcast(tl.reshape(x, (PAIRS // GROUP, GROUP)), by[:, None]))
    return tl.reshape(quotient, (PAIRS,))


@triton.jit
def _store_latent(even, odd, record_ptr, PAIRS: tl.constexpr):
    """A latent record: E2M1 with an E4M3 scale for 16 channels."""
    size = tl.maximum(_group_sizes(even, odd, PAIRS, 8), 6.0 * 2.0**-9)
    scale = tl.div_rn(size, 6.0).to(tl.float8e4nv)
    by = scale.to(tl.float32)
    even, odd = _divided(even, by, PAIRS, 8), _divided(odd, by, PAIRS, 8)
    codes = fp4_code(even) | (fp4_code(odd) << 4)
    tl.store(record_ptr + tl.arange(0, PAIRS), codes.to(tl.uint8))
    group = tl.arange(0, PAIRS // 8)
    tl.store(record_ptr + PAIRS + group, scale.to(tl.uint8, bitcast=True))


@triton.jit
def _store_key(even, odd, code_ptr, scale_ptr, PAIRS: tl.constexpr):
    """An index key: E2M1 with a power of two for 32 channels."""
    size = tl.maximum(_group_sizes(even, odd, PAIRS, 16), 6.0 * 1.1754943508222875e-38)
    bits = tl.div_rn(size, 6.0).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    by = (exponent << 23).to(tl.float32, bitcast=True)
    even, odd = _divided(even, by, PAIRS, 16), _divided(odd, by, PAIRS, 16)
    codes = fp4_code(even) | (fp4_code(odd) << 4)
    tl.store(code_ptr + tl.arange(0, PAIRS), codes.to(tl.uint8))
    tl.store(scale_ptr + tl.arange(0, PAIRS // 16), exponent.to(tl.uint8))


@triton.jit
def _pooled(
    part_ptr, pair_ptr, tokens, token, position, start, end, complete,
    OUT: tl.constexpr, WIDTH: tl.constexpr, SEGMENTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Stores a token in its pair ring [ROWS, 2, WIDTH] and pools it with the one before.

    The first token of a slice may read a row that a later one should write; it writes that row
    itself, after it has read it.
    """
    column = tl.arange(0, WIDTH)
    value = _sums(part_ptr, tokens, token, OUT, WIDTH, SEGMENTS)
    gate = _sums(part_ptr + WIDTH, tokens, token, OUT, WIDTH, SEGMENTS)
    other_value, other_gate = value, gate
    row, taken = position % ROWS, (start + ROWS - 1) % ROWS
    if complete:
        if position > start:
            other_value = _sums(part_ptr, tokens, token - 1, OUT, WIDTH, SEGMENTS)
            other_gate = _sums(part_ptr + WIDTH, tokens, token - 1, OUT, WIDTH, SEGMENTS)
        else:
            earlier = pair_ptr + taken * OUT + column
            other_value, other_gate = tl.load(earlier), tl.load(earlier + WIDTH)
    if (position >= end - ROWS) & (row != taken):
        tl.store(pair_ptr + row * OUT + column, value)
        tl.store(pair_ptr + row * OUT + WIDTH + column, gate)
    if (position == start) & (end - start >= ROWS):
        tl.debug_barrier()
        last = token + (end - 1 - start) - (end - start) % ROWS
        late_value = _sums(part_ptr, tokens, last, OUT, WIDTH, SEGMENTS)
        late_gate = _sums(part_ptr + WIDTH, tokens, last, OUT, WIDTH, SEGMENTS)
        tl.store(pair_ptr + taken * OUT + column, late_value)
        tl.store(pair_ptr + taken * OUT + WIDTH + column, late_gate)
    most = tl.maximum(gate, other_gate)
    ours, others = tl.exp(gate - most), tl.exp(other_gate - most)
    total = ours + others
    return other_value * tl.div_rn(others, total) + value * tl.div_rn(ours, total)


@triton.jit(do_not_specialize=["tokens", "eps", "pages"])
def _entries(
    part_ptr, pair_ptr, norm_ptr, wk_ptr, k_norm_ptr, freq_ptr,
    position_ptr, row_ptr, start_ptr, end_ptr, cached_ptr, slot_ptr, table_ptr,
    latent_ptr, code_ptr, scale_ptr, tokens, pages, eps,
    SLOT: tl.constexpr, LATENT_PAGE: tl.constexpr, CODE_PAGE: tl.constexpr,
    SCALE_PAGE: tl.constexpr, RATIO: tl.constexpr, ENTRIES: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, KEY: tl.constexpr, ROTATED: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """The entry that one token completes, if it completes one that is not cached."""
    key_row, column = tl.arange(0, KEY)[:, None], tl.arange(0, WIDTH)
    wk = tl.load(wk_ptr + key_row * WIDTH + column[None, :])
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0)
    position, request = tl.load(position_ptr + token), tl.load(row_ptr + token)
    complete = position % RATIO == RATIO - 1
    if RATIO == 2:
        start, end = tl.load(start_ptr + token), tl.load(end_ptr + token)
        pair_ptr += tl.load(slot_ptr + request) * SLOT
        raw = _pooled(
            part_ptr, pair_ptr, tokens, token, position, start, end, complete,
            2 * WIDTH, WIDTH, SEGMENTS, ROWS,
        )  # fmt: skip
    else:
        raw = _sums(part_ptr, tokens, token, WIDTH, WIDTH, SEGMENTS)
    if complete & (position >= tl.load(cached_ptr + token)):
        entry = position // RATIO
        page = tl.load(table_ptr + request * pages + entry // ENTRIES)
        place = entry % ENTRIES
        latent = _normed(raw.to(tl.bfloat16).to(tl.float32), norm_ptr, eps, WIDTH)
        key = tl.sum(wk.to(tl.float32) * latent[None, :], 1).to(tl.bfloat16).to(tl.float32)
        key = _normed(key, k_norm_ptr, eps, KEY)
        first = position - (RATIO - 1)  # first token of the group (D18)
        even, odd = _turned(latent, first, freq_ptr, WIDTH, ROTATED)
        record: tl.constexpr = WIDTH // 2 + WIDTH // 16
        _store_latent(even, odd, latent_ptr + page * LATENT_PAGE + place * record, WIDTH // 2)
        even, odd = _turned(key, first, freq_ptr, KEY, ROTATED)
        code_ptr += page * CODE_PAGE + place * (KEY // 2)
        _store_key(
            even, odd, code_ptr, scale_ptr + page * SCALE_PAGE + place * (KEY // 32), KEY // 2
        )


def store_entries(
    sums: Tensor,
    norm: Tensor,
    wk: Tensor,
    k_norm: Tensor,
    batch: Batch,
    pairs: Tensor | None,
    pages: PageViews,
    freqs: Tensor,
    eps: float,
) -> None:
    """Make and store the entries that tokens complete; cached ones are left alone.

    Args:
        sums: fp32 [segments, tokens, head_dim], of a ratio-2 owner [.., 2 * head_dim]: values,
            then gates.
        norm: [head_dim].
        wk: bf16 [index_head_dim, head_dim].
        k_norm: [index_head_dim].
        batch: the tokens.
        pairs: [slots, rows, 2, head_dim] fp32, a slot's rows side by side; None for ratio 1.
        pages: the owner's page sections, a page's entries side by side.
        freqs: fp32 [rope / 2].
        eps: config key `rms_norm_eps`.
    """
    count, tokens, _ = sums.shape
    key, width = wk.shape
    latents, codes, scales = pages
    assert latents.stride(1) == width // 2 + width // 16, "entries lie side by side"
    assert codes.stride(1) == key // 2, "entries lie side by side"
    assert scales.stride(1) == key // 32, "entries lie side by side"
    slot, rows = (0, 0) if pairs is None else (pairs.stride(0), pairs.shape[1])
    assert pairs is None or pairs.stride(1) == 2 * width, "pair rows lie side by side"
    if tokens:
        _entries[(tokens,)](
            sums, sums if pairs is None else pairs, norm, wk, k_norm, freqs,
            batch.positions, batch.rows, batch.starts, batch.ends, batch.cached, batch.slots,
            batch.page_table, latents, codes, scales, tokens, batch.page_table.stride(0), eps,
            slot, latents.stride(0), codes.stride(0), scales.stride(0), pages.ratio,
            pages.entries, rows, width, key, freqs.shape[0], count,
            num_warps=8, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
