"""Inputs of `engram_rows`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.engram_rows.reference import EngramHash

PER_TOKEN = ("window",)


def case(make: Maker, batch: Batch) -> Case:
    """Histories with some absent tokens, and constants of the sizes of the release."""
    arch, engram = make.arch, make.arch.engram
    assert engram is not None, "row ids need an architecture with Engram"
    classes = engram.compressed_vocab_size
    primes = engram.vocab_size + 2 * make.integers(0, 500, engram.columns) + 1
    bound = (2**63 - 1) // classes // 2
    return {
        "window": make.integers(-1, arch.vocab_size, len(batch.positions), engram.max_ngram_size),
        "table": EngramHash(
            classes=make.integers(0, classes, arch.vocab_size),
            multipliers=2 * make.integers(0, bound, engram.max_ngram_size) + 1,
            primes=primes,
            offsets=primes.cumsum(0) - primes,
            pad=2,
        ),
    }
