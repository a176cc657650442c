"""Grammar masks on the device: where they lie, and how they get there.

Knows nothing of grammars.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deepinfer.device import upload
from deepinfer.step import StepMasks

EVERY = -1  # a word that allows all of its ids


class MaskTable:
    """Masks of the rows of a step; tensors stay where they are, captured graphs read them.

    Args:
        rows: entries, the reserved row 0 included.
        drafts: most drafts a row.
        vocab: ids of the model.
        device: where it lies.

    Attributes:
        words: [rows, 1 + drafts, words] int32; those of row 0 allow everything.
        place: [rows] int64, the row itself if it has masks in this step, else 0.
        legal: [rows] int64, leading drafts that may be verified; -1 = generate nothing.
    """

    def __init__(self, rows: int, drafts: int, vocab: int, device: torch.device):
        size = (rows, 1 + drafts, -(-vocab // 32))
        self.words = torch.full(size, EVERY, dtype=torch.int32, device=device)
        self.place = torch.zeros(rows, dtype=torch.int64, device=device)
        self.legal = torch.full((rows,), drafts, dtype=torch.int64, device=device)
        self._drafts = drafts

    def write(self, masks: StepMasks) -> None:
        """Take the masks of a step instead of those of the one before; nothing is waited for."""
        rows, device = len(self.place), self.words.device
        place, legal = np.zeros(rows, np.int64), np.full(rows, self._drafts, np.int64)
        place[masks.row], legal[masks.row] = masks.row, masks.legal
        legal[list(masks.late)] = -1
        sent = upload(np.concatenate((place, legal, masks.row.astype(np.int64))), device)
        self.place.copy_(sent[:rows])
        self.legal.copy_(sent[rows : 2 * rows])
        if len(masks.row):
            self.words.index_copy_(0, sent[2 * rows :], upload(masks.words, device))

    def of(self, rows: Tensor, depth: Tensor) -> Tensor:
        """[n, words] masks of the tokens at `depth` [n] drafts behind the newest of `rows` [n]."""
        return self.words[self.place[rows], depth]
