"""The generator of docs/sampling.md a second time, in NumPy: written from the text, no shared code.

Unsigned words, bit counts through Python strings of bits or float64 exponents, floor division.
"""

import numpy as np

COEFFICIENTS = [
    1549082000,
    774542859,
    516239574,
    390301736,
    271772144,
    527844224,
    -914095782,
    3036000220,
    -3809133581,
    2685507065,
]


def philox_words(seed, position, purpose, sample, ids):
    """uint64 array of the 32-bit words of token ids."""
    ids = np.asarray(ids, dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    constant = np.full(ids.shape, 1, dtype=np.uint64)
    counter = [
        ids // np.uint64(4),
        constant * np.uint64(position % 2**32),
        constant * np.uint64(purpose),
        constant * np.uint64(sample % 2**32),
    ]
    key = [seed % 2**32, (seed >> 32) % 2**32]
    for _ in range(10):
        first = np.uint64(0xD2511F53) * counter[0]
        second = np.uint64(0xCD9E8D57) * counter[2]
        counter = [
            (second >> np.uint64(32)) ^ counter[1] ^ np.uint64(key[0]),
            second & mask,
            (first >> np.uint64(32)) ^ counter[3] ^ np.uint64(key[1]),
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return np.choose((ids % np.uint64(4)).astype(np.int64), counter)


def bit_length(values):
    """Bits of positive integers below 2^63."""
    values = np.asarray(values, dtype=np.int64)
    high, low = values >> 32, values & 0xFFFFFFFF
    part = np.where(high > 0, high, low).astype(np.float64)  # exact: below 2^32
    return np.frexp(part)[1] + np.where(high > 0, 32, 0)


def minus_log2_one_minus(t):
    """2^62 x -log2(1 - t / 2^32), an integer."""
    value = np.zeros_like(t)
    for coefficient in reversed(COEFFICIENTS):
        value = value * t // 2**32 + coefficient
    return value * t


def gumbel(words):
    """float32 Gumbel noise of words."""
    y = np.asarray(words).astype(np.int64) | 1
    n = bit_length(y)
    t = 2**32 - y * 2 ** (32 - n)
    e = (32 - n) * 2**57 + minus_log2_one_minus(t) // 2**5
    n = bit_length(e)
    top = np.where(n <= 32, e << np.clip(32 - n, 0, 31), e >> np.clip(n - 32, 0, 31))
    minus_log2_e = (57 - n) * 2**28 + minus_log2_one_minus(2**32 - top) // 2**34
    fixed = minus_log2_e * 744261118 // 2**28 + 393540252
    return fixed.astype(np.float32) * np.float32(2.0**-30)


def exact_gumbel(words):
    """float64 noise of the same u by the formula itself."""
    y = (np.asarray(words).astype(np.int64) | 1).astype(np.float64)
    near_one = -np.log1p(-(2.0**32 - y) / 2.0**32)
    return -np.log(np.where(y > 2.0**31, near_one, -np.log(y / 2.0**32)))
