"""A matcher without a grammar: what may come is a hash of the tokens so far."""

import time
from collections.abc import Sequence

import numpy as np

from deepinfer.scheduler.hashes import fold, mix


class HashMatcher:
    """About half of all ids may come, now and then all of them; never none.

    Args:
        vocab: ids.
        seconds: what computing the masks of a step takes.
    """

    def __init__(self, vocab: int, seconds: float = 0.0):
        self.vocab, self.seconds = vocab, seconds
        self.words = -(-vocab // 32)
        self.state = 1
        self.refused = 0
        self.asked = 0

    def _bits(self, state: int) -> np.ndarray:
        words = [mix(state + place) | 1 for place in range(self.words)]
        return np.array(words, np.uint64).astype(np.uint32).view(np.int32)

    def _allows(self, state: int, id: int) -> bool:
        return state % 5 == 0 or bool(self._bits(state)[id >> 5] >> (id & 31) & 1)

    def accept(self, ids: Sequence[int]) -> int:
        for taken, id in enumerate(ids):
            if not self._allows(self.state, id):
                return taken
            self.state = fold(self.state, id)
        return len(ids)

    def fill_masks(self, drafts: Sequence[int], rows: np.ndarray) -> int:
        time.sleep(self.seconds)
        self.asked += 1
        state = self.state
        for place, id in enumerate((*drafts, -1)):
            rows[place] = -1 if state % 5 == 0 else self._bits(state)
            if id < 0 or not self._allows(state, id):
                self.refused += id >= 0
                return place
            state = fold(state, id)
        raise AssertionError("the last id is none")

    def is_free_after(self, drafts: Sequence[int]) -> bool:
        return not drafts and self.state % 5 == 0
