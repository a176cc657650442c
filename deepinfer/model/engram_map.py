"""Which rows of the Engram tables an n-gram looks up: token classes, primes, hash constants.

Everything follows from `config.json` and `tokenizer.json`; nothing of it is stored in a checkpoint.
It knows nothing of torch, of the tables' contents, or of which tokens are dead.
Source: model.md 9.1-9.4, model-decisions.md D44-D46.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers

from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

    from deepinfer.arch import Engram

_UNDECODABLE = "\ufffd"  # what decoding yields for bytes that are no complete character
_ONE_SPACE = "\ue000"  # private-use stand-in that survives stripping
_SEED_STRIDE = 10007  # the release seeds the multipliers of a layer with 10007 x layer id


@dataclass(frozen=True, eq=False)
class EngramMap:
    """All constants of the n-gram hash.

    Attributes:
        classes: int32 [vocab], token id -> class in [0, compressed vocabulary size).
        primes: int64 [layers, sizes, heads], buckets of each column; sizes are n = 2..max.
        offsets: int64 [layers, columns], first table row of each column, n-gram size major.
        multipliers: int64 [layers, max n-gram size], all odd, newest token first.
        pad_class: class that stands in dead slots and before the start of the sequence.
    """

    classes: NDArray[np.int32]
    primes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    multipliers: NDArray[np.int64]
    pad_class: int

    @classmethod
    def build(cls, engram: Engram, tokenizer: Tokenizer, vocab_size: int) -> EngramMap:
        """Derive the constants and check them against the configuration.

        Args:
            engram: the `engram_*` keys of `config.json`.
            tokenizer: the tokenizer of the same checkpoint.
            vocab_size: rows of the embedding, config key `vocab_size`.

        Raises:
            ConfigError: the tokenizer has another number of ids or classes than the config says,
                or the table sizes are not the sums of the primes. Each would hash to wrong rows.
        """
        classes = token_classes(tokenizer)
        if len(classes) != vocab_size:
            raise ConfigError(
                f"tokenizer has {len(classes)} ids but vocab_size is {vocab_size}; "
                "take tokenizer.json and config.json from the same checkpoint"
            )
        count = int(classes.max()) + 1
        if count != engram.compressed_vocab_size:
            raise ConfigError(
                f"tokenizer has {count} token classes but engram_compressed_vocab_size is "
                f"{engram.compressed_vocab_size}; take tokenizer.json and config.json from the "
                "same checkpoint"
            )
        primes = bucket_primes(engram)
        rows = tuple(int(total) for total in primes.sum(axis=(1, 2)))
        if rows != engram.num_embeddings:
            raise ConfigError(
                f"engram_num_embeddings is {list(engram.num_embeddings)} but engram_vocab_size "
                f"{engram.vocab_size} with {engram.columns} columns gives {list(rows)}"
            )
        pad_class = int(classes[engram.pad_token_id])
        return cls(classes, primes, row_offsets(primes), multipliers(engram), pad_class)


def token_classes(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Group token ids whose text is the same up to case, accents, width and outer spaces.

    Classes are numbered in order of their first id.

    Returns:
        int32 [vocab], vocab = all ids of the tokenizer, added tokens included.

    Raises:
        ConfigError: the ids of the tokenizer have gaps.

    Source: model.md 9.1.
    """
    vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
    texts = tokenizer.decode_batch([[i] for i in range(vocab_size)], skip_special_tokens=False)
    normalizer = _class_normalizer()
    numbers: dict[str, int] = {}
    classes = np.empty(vocab_size, dtype=np.int32)
    for token_id, text in enumerate(texts):
        token = tokenizer.id_to_token(token_id)
        if token is None:
            raise ConfigError(
                f"tokenizer has {vocab_size} ids but none numbered {token_id}; ids must be dense"
            )
        key = token if _UNDECODABLE in text else normalizer.normalize_str(text) or text
        classes[token_id] = numbers.setdefault(key, len(numbers))
    return classes


def _class_normalizer() -> normalizers.Normalizer:
    """The normalisation of 9.1, from parts of `tokenizers`.

    Its Unicode tables do not change with the Python version, and `StripAccents` removes every
    combining mark (categories Mn, Mc and Me), as the rule demands.
    """
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex("[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"\A \z"), _ONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_ONE_SPACE, " "),
        ]
    )


def bucket_primes(engram: Engram) -> NDArray[np.int64]:
    """The number of buckets of every column: no prime is used twice.

    The rule restarts at `engram_vocab_size` for each n-gram size and skips used primes; what is
    left is the ascending sequence of primes >= `engram_vocab_size`, dealt out in order.

    Returns:
        int64 [layers, sizes, heads].

    Source: model.md 9.2.
    """
    shape = (len(engram.layer_ids), engram.max_ngram_size - 1, engram.n_heads)
    count = shape[0] * shape[1] * shape[2]
    primes = islice(_primes_from(engram.vocab_size), count)
    return np.fromiter(primes, dtype=np.int64, count=count).reshape(shape)


def _primes_from(least: int) -> Iterator[int]:
    number = max(least, 2)
    while True:
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 1


def row_offsets(primes: NDArray[np.int64]) -> NDArray[np.int64]:
    """First table row of each column: the sum of the primes before it in the same layer.

    Args:
        primes: int64 [layers, sizes, heads].

    Returns:
        int64 [layers, sizes * heads].
    """
    flat = primes.reshape(len(primes), -1)
    return np.cumsum(flat, axis=1) - flat


def multipliers(engram: Engram) -> NDArray[np.int64]:
    """Odd hash multipliers, small enough that class x multiplier never passes 2^63.

    Returns:
        int64 [layers, max n-gram size].

    Source: model.md 9.3, model-decisions.md D44.
    """
    bound = (2**63 - 1) // engram.compressed_vocab_size // 2
    draws = [
        np.random.default_rng(_SEED_STRIDE * layer).integers(
            0, bound, size=engram.max_ngram_size, dtype=np.int64
        )
        for layer in engram.layer_ids
    ]
    return 2 * np.stack(draws) + 1


def hash_rows(
    engram_map: EngramMap, layer_position: int, window_classes: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Table rows of one Engram layer for windows of token classes; the definition of the hash.

    H = t_0 m_0; for n = 2..max: H = H xor t_(n-1) m_(n-1), row(n, head) = H mod prime + offset.

    Args:
        engram_map: the constants.
        layer_position: index into `engram_layer_ids`.
        window_classes: [*, max n-gram size], newest token first; dead slots and all older ones
            already hold `engram_map.pad_class`.

    Returns:
        int64 [*, columns], column = (n - 2) * heads + head.

    Source: model.md 9.4.
    """
    primes = engram_map.primes[layer_position]
    factors = engram_map.multipliers[layer_position]
    window = np.asarray(window_classes, dtype=np.int64)
    assert window.shape[-1] == len(factors)
    products = window * factors
    mixed = np.bitwise_xor.accumulate(products, axis=-1)[..., 1:]
    rows = mixed[..., None] % primes
    return rows.reshape(*window.shape[:-1], -1) + engram_map.offsets[layer_position]
