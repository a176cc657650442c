"""Batches without end, made ahead by other processes.

Batch n is a function of seed, shape and n alone. Knows nothing of what is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

from deepinfer.eval.draw import Draw
from deepinfer.nano.data.dialogue import Document, Encoder
from deepinfer.nano.data.mix import TEXT, document, opening, shares
from deepinfer.nano.data.pack import Batch, packed

_AHEAD = 3  # batches a worker


def batch(encoder: Encoder, seed: int, rows: int, length: int, number: int) -> Batch:
    """Batch `number` of a stream."""
    draw = Draw("nano", seed, rows, length, number)

    def made(kind: int) -> Document:
        return document(kind, draw, length, encoder)

    return packed(rows, length, shares(length), made, TEXT, opening(length))


def stream(
    tokenizer_json: str, seed: int, rows: int, length: int, first: int, workers: int
) -> Generator[Batch, None, None]:
    """Batches from number `first` on; closing the iterator ends the workers.

    Args:
        tokenizer_json: text of the `tokenizer.json`.
        seed: of all draws.
        rows: of a batch.
        length: tokens of a row.
        first: number of the first batch.
        workers: processes that make batches; 0 makes each when it is asked for.
    """
    number = first
    if workers == 0:
        encoder = Encoder(tokenizer_json)
        while True:
            yield batch(encoder, seed, rows, length, number)
            number += 1
    # Forking a process that has talked to a GPU is not safe.
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    waiting: deque[Future[Batch]] = deque()
    try:
        while True:
            while len(waiting) < _AHEAD * workers:
                job = pool.submit(_made, tokenizer_json, seed, rows, length, number)
                waiting.append(job)
                number += 1
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@cache
def _encoder(tokenizer_json: str) -> Encoder:
    return Encoder(tokenizer_json)


def _made(tokenizer_json: str, seed: int, rows: int, length: int, number: int) -> Batch:
    return batch(_encoder(tokenizer_json), seed, rows, length, number)
