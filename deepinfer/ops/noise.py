"""The random generator of sampling: Philox4x32-10, and Gumbel noise made of its words.

Counter-based: a word is a function of seed, position, purpose, sample index and token id, so
nothing else (batch, row, step, draft length, device) can enter. Every step up to the last
conversion is integer arithmetic, so the bits are equal on every device. Knows nothing of logits.

32-bit words are held in int64 tensors, values 0..2^32 - 1. int64 products wrap modulo 2^64, which
is what a 32 x 32 -> 64 bit multiplication needs.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); sampling.md 3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

_WORD = (1 << 32) - 1
# Multipliers and key increments of Philox4x32, from the paper.
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LANES = 4

# f(t) = -log2(1 - t) / t on (0, 1/2]: Chebyshev interpolation of degree 9, rounded to multiples of
# 2^-30, constant term first. Relative error below 5e-9.
RATIO = (
    *(1549082000, 774542859, 516239574, 390301736, 271772144),
    *(527844224, -914095782, 3036000220, -3809133581, 2685507065),
)
LN2 = 744261118  # ln 2 x 2^30
MINUS_LN_LN2 = 393540252  # -ln(ln 2) x 2^30


class Purpose(IntEnum):
    """Third counter word: what a draw is for. Sharing noise between purposes biases results."""

    TARGET = 0
    DRAFT = 1
    RESIDUAL = 2
    ACCEPT = 3


class NoiseKey(NamedTuple):
    """Which noise a row uses; int64 [rows] each.

    seed: all 64 bits count, as a signed number. position: index of the token being produced, 0 =
    first prompt token. sample: which of the `n` completions of one request.
    """

    seed: Tensor
    position: Tensor
    sample: Tensor


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Philox4x32-10.

    Args:
        counter: four tensors of words, of shapes that broadcast.
        key: two tensors of words.

    Returns:
        Four tensors of words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLY[0], c2 * _MULTIPLY[1]
        w0, w1 = (k0 + round_ * _WEYL[0]) & _WORD, (k1 + round_ * _WEYL[1]) & _WORD
        c0, c2 = _high(p1) ^ c1 ^ w0, _high(p0) ^ c3 ^ w1
        c1, c3 = p1 & _WORD, p0 & _WORD
    return c0, c1, c2, c3


def _high(product: Tensor) -> Tensor:
    return (product >> 32) & _WORD


def words(key: NoiseKey, purpose: Purpose, vocab: int) -> Tensor:
    """[rows, vocab] int64, the word of each token id in [0, vocab)."""
    groups = torch.arange(-(-vocab // _LANES), device=key.seed.device)
    seed, position, sample = (part.unsqueeze(1) for part in key)
    purpose_word = torch.full_like(position, int(purpose))
    counter = (groups, position & _WORD, purpose_word, sample & _WORD)
    lanes = philox(counter, (seed & _WORD, _high(seed)))
    return torch.stack(lanes, dim=-1).flatten(1)[:, :vocab]


def gumbel(word: Tensor) -> Tensor:
    """Gumbel noise G = -ln(-ln u) with u = (word | 1) / 2^32.

    With L(t) = -log2(1 - t): a number m x 2^n, 1 <= m < 2, has log2 = n + 1 - L(1 - m / 2). So
    e = -log2 u = leading zeros + L, small and with full relative precision where u is near 1, and
    G = -ln(ln 2) - ln 2 x log2(e).

    Args:
        word: int64, values 0..2^32 - 1.

    Returns:
        fp32, same shape, within [-3.1, 22.2]. Error before the conversion below 2e-8.
    """
    mantissa, zeros = _normalise(word | 1, bits=32)
    e = (zeros << 57) + (_minus_log2((1 << 32) - mantissa) >> 5)  # multiples of 2^-57, > 0
    mantissa, zeros = _normalise(e, bits=63)
    # The top bit of e stands for 2^(5 - zeros).
    minus_log2_e = ((zeros - 6) << 28) + (_minus_log2((1 << 32) - (mantissa >> 31)) >> 34)
    fixed = ((minus_log2_e * LN2) >> 28) + MINUS_LN_LN2
    return fixed.to(torch.float32) * 2.0**-30


def _normalise(value: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Shift positive numbers left until bit `bits - 1` is set; also how far (bits <= 63)."""
    shifted = torch.zeros_like(value)
    for step in (32, 16, 8, 4, 2, 1):
        if step >= bits:
            continue
        low = value < 1 << (bits - step)
        value = torch.where(low, value << step, value)
        shifted = shifted + low * step
    return value, shifted


def _minus_log2(t: Tensor) -> Tensor:
    """-log2(1 - t) in multiples of 2^-62, for t in multiples of 2^-32 with 0 < t <= 1/2."""
    ratio = torch.full_like(t, RATIO[-1])
    for coefficient in RATIO[-2::-1]:
        ratio = ((ratio * t) >> 32) + coefficient
    return ratio * t


def gumbel_noise(key: NoiseKey, purpose: Purpose, vocab: int) -> Tensor:
    """[rows, vocab] fp32 Gumbel noise of every token id."""
    return gumbel(words(key, purpose, vocab))


def gumbel_argmax(scaled: Tensor, key: NoiseKey, purpose: Purpose) -> Tensor:
    """Draw one id a row from softmax(scaled); ties to the lower id.

    Args:
        scaled: [rows, vocab] fp32; the likeliest entries near 0 (so that adding noise does not
            lose its low bits), -inf = impossible.
        key: of the rows.
        purpose: of the draw.

    Returns:
        [rows] int64.
    """
    return (scaled + gumbel_noise(key, purpose, scaled.shape[-1])).argmax(-1)


def gumbel_noise_at(key: NoiseKey, purpose: Purpose, ids: Tensor) -> Tensor:
    """The noise of some ids of each row, the bits of `gumbel_noise`.

    Args:
        key: of the rows.
        purpose: of the draw.
        ids: [rows, k] int64.

    Returns:
        [rows, k] fp32.
    """
    seed, position, sample = (part.unsqueeze(1) for part in key)
    purpose_word = torch.full_like(position, int(purpose))
    counter = (ids // _LANES, position & _WORD, purpose_word, sample & _WORD)
    lanes = torch.stack(philox(counter, (seed & _WORD, _high(seed))), dim=-1)
    return gumbel(lanes.gather(-1, (ids % _LANES).unsqueeze(-1)).squeeze(-1))
