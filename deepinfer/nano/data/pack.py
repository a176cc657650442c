"""Documents side by side in rows of one length.

Knows nothing of what documents say; plain text is cut to fill what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepinfer.nano.data.dialogue import Document

PADDING_ID = 2
NO_KIND = 255
_MISSES = 6  # documents of a kind in a row that fit nowhere: the batch is full
_LEAST_TEXT = 16  # tokens of text that are worth a place


@dataclass(frozen=True)
class Batch:
    """Rows of documents. Padding has `PADDING_ID`, document -1, position 0, weight 0, `NO_KIND`.

    Attributes:
        ids: [rows, length] uint16.
        documents: [rows, length] int16, number of the document inside its row.
        positions: [rows, length] int16, 0-based inside the document; a document begins at an even
            offset of its row, so that pairs of tokens are pairs of the document.
        weights: [rows, length] float32, loss weight of an id as a target: 1 where the model
            speaks, less elsewhere, 0 for the first token of a document.
        kinds: [rows, length] uint8, index into the names of kinds.
    """

    ids: NDArray[np.uint16]
    documents: NDArray[np.int16]
    positions: NDArray[np.int16]
    weights: NDArray[np.float32]
    kinds: NDArray[np.uint8]


class Packer:
    """An empty batch that documents are put into.

    Args:
        rows: of the batch.
        length: tokens of a row, even, at most 32,766.
    """

    def __init__(self, rows: int, length: int):
        assert length % 2 == 0
        assert 0 < length < 1 << 15
        shape = (rows, length)
        self.batch = Batch(
            np.full(shape, PADDING_ID, np.uint16),
            np.full(shape, -1, np.int16),
            np.zeros(shape, np.int16),
            np.zeros(shape, np.float32),
            np.full(shape, NO_KIND, np.uint8),
        )
        self._length = length
        self._used = np.zeros(rows, np.int64)
        self._count = np.zeros(rows, np.int64)

    def put(self, document: Document, kind: int) -> bool:
        """Put a document into the first row that has room; False if none has."""
        free = np.nonzero(self._used + len(document.ids) <= self._length)[0]
        if len(free) == 0:
            return False
        self._write(int(free[0]), document, kind)
        return True

    def open(self, row: int, document: Document, kind: int) -> None:
        """Put a document into an empty row; it must not be longer than the row."""
        assert self._used[row] == 0
        self._write(row, document, kind)

    def fill(self, text: Callable[[], Document], kind: int) -> None:
        """Put pieces of text into what is left of the rows."""
        for row in range(len(self._used)):
            while (room := self._length - int(self._used[row])) >= _LEAST_TEXT:
                document = text()
                cut = Document(document.ids[:room], document.weights[:room])
                self._write(row, cut, kind)

    def _write(self, row: int, document: Document, kind: int) -> None:
        size, begin = len(document.ids), int(self._used[row])
        place = slice(begin, begin + size)
        batch = self.batch
        batch.ids[row, place] = document.ids
        batch.documents[row, place] = self._count[row]
        batch.positions[row, place] = np.arange(size)
        batch.weights[row, place] = document.weights
        batch.kinds[row, place] = kind
        self._used[row] += size + size % 2
        self._count[row] += 1


def packed(
    rows: int,
    length: int,
    shares: Mapping[int, float],
    draw: Callable[[int], Document],
    filler: int,
    opening: int | None = None,
) -> Batch:
    """A full batch.

    Args:
        rows: of the batch.
        length: tokens of a row.
        shares: kind -> part of the tokens that it is to have, > 0.
        draw: makes a document of a kind.
        filler: the kind of plain text, which may be cut.
        opening: the kind of the first document of every row, if its documents are so long that
            they fit into empty rows only.
    """
    packer = Packer(rows, length)
    used = dict.fromkeys(shares, 0.0)
    misses = dict.fromkeys(shares, 0)
    if opening is not None:
        for row in range(rows):
            document = draw(opening)
            packer.open(row, document, opening)
            used[opening] += len(document.ids)
    while used:
        kind = min(used, key=lambda each: used[each] / shares[each])
        document = draw(kind)
        if packer.put(document, kind):
            used[kind] += len(document.ids)
            misses[kind] = 0
        else:
            misses[kind] += 1
            if misses[kind] == _MISSES:
                del used[kind]
    packer.fill(lambda: draw(filler), filler)
    return packer.batch
