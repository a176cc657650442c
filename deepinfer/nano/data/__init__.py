"""Training data of the embedded model, made from a seed; see `docs/nano.md`.

Knows nothing of networks.
"""

from __future__ import annotations

from collections.abc import Generator

from deepinfer.nano.data.mix import KINDS
from deepinfer.nano.data.pack import Batch
from deepinfer.nano.data.stream import stream
from deepinfer.nano.data.vocabulary import tokenizer

__all__ = ["KINDS", "Batch", "batches", "tokenizer"]


def batches(
    seed: int, rows: int, length: int, first: int = 0, workers: int = 0
) -> Generator[Batch, None, None]:
    """Batches without end; number n depends on seed, rows, length and n alone.

    Args:
        seed: of all draws; take another one for data that are held out.
        rows: of a batch.
        length: tokens of a row, even. Rows of 2,048 and more are mostly long look-ups.
        first: number of the first batch, to go on where another run stopped.
        workers: processes that make them ahead, 0 = none. Closing the iterator ends them.
    """
    return stream(tokenizer().to_str(), seed, rows, length, first, workers)
