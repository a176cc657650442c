"""Grammar masks in a trace: as text, and given again without the grammar.

Masks depend on threads being ready in time, so a replay takes those of the recording. Knows nothing
of grammars.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer.step import StepMasks

Words = NDArray[np.int32]
_TYPE = np.dtype("<i4")


def packed(words: Words) -> str:
    """Masks of any shape as text; most are nearly all ones or nearly all zeros."""
    return base64.b64encode(zlib.compress(words.astype(_TYPE).tobytes(), 1)).decode("ascii")


def unpacked(text: str) -> Words:
    """The numbers of `packed`, in one row.

    Raises:
        ValueError: the text is something else.
    """
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), _TYPE)
    except zlib.error as error:
        raise ValueError(f"no masks: {error}") from error


def masks_record(masks: StepMasks) -> dict[str, Any]:
    """Masks of a step as plain data."""
    return {
        "row": masks.row.tolist(),
        "shape": list(masks.words.shape),
        "words": packed(masks.words),
        "legal": masks.legal.tolist(),
        "free": list(masks.free),
        "late": list(masks.late),
    }


def masks_of(record: dict[str, Any]) -> StepMasks:
    """The masks of `masks_record`.

    Raises:
        ValueError, KeyError, TypeError: the record is something else.
    """
    return StepMasks(
        row=np.array(record["row"], np.int32),
        words=unpacked(record["words"]).reshape(record["shape"]).astype(np.int32),
        legal=np.array(record["legal"], np.int32),
        free=tuple(record["free"]),
        late=tuple(record["late"]),
    )


def of_tokens(masks: StepMasks | None, row: int, count: int) -> list[str | None]:
    """What the first `count` tokens that a row generated in a step were chosen from; None = all."""
    place = [] if masks is None else np.flatnonzero(masks.row == row)
    if masks is None or not len(place):
        return [None] * count
    return [packed(words) for words in masks.words[place[0], :count]]


class RecordedMatcher:
    """Gives the masks of a recorded answer again, as long as its tokens come; then allows all.

    Args:
        tokens: of the answer.
        masks: of each, None = all ids may come.
        words: 32-bit words of a mask.
    """

    def __init__(self, tokens: Sequence[int], masks: Sequence[str | None], words: int):
        self._tokens = tokens
        self._masks = masks
        self._all = np.full(words, -1, np.int32)
        self._place: int | None = 0  # among the tokens; None = others came

    def accept(self, ids: Sequence[int]) -> int:
        """Take tokens; all of them."""
        self._place = self._after(ids)
        return len(ids)

    def fill_masks(self, drafts: Sequence[int], rows: Words) -> int:
        """Write masks of the next token and of those after drafts; all drafts are legal."""
        for count in range(min(len(drafts), len(rows) - 1) + 1):
            rows[count] = self._mask(self._after(drafts[:count]))
        return len(drafts)

    def is_free_after(self, drafts: Sequence[int]) -> bool:
        """Whether every id may come now and after each of `drafts`."""
        after = (self._after(drafts[:count]) for count in range(len(drafts) + 1))
        return all(
            place is None or self._masks[place : place + 1] in ([], [None]) for place in after
        )

    def _after(self, ids: Sequence[int]) -> int | None:
        if self._place is None:
            return None
        last = self._place + len(ids)
        return last if list(self._tokens[self._place : last]) == list(ids) else None

    def _masked(self, place: int | None) -> str | None:
        return None if place is None or place >= len(self._masks) else self._masks[place]

    def _mask(self, place: int | None) -> Words:
        mask = self._masked(place)
        return self._all if mask is None else unpacked(mask)
