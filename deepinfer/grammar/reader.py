"""The matching library's state in one text, and whether its answers can be trusted.

All copies of a library matcher share one lexer, whose states and work are limited. When they are
used up it says no to every question, not always with an error. It does not know ends nor starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher

from deepinfer.grammar.mask_row import WORD_BITS, allows, forbid
from deepinfer.grammar.vocabulary import Vocabulary

_USED_UP = ("too many states", "too many expressions")


class Reader:
    """A library matcher, and a copy that stays at the beginning and tells of a used-up lexer.

    Args:
        matcher: at the beginning of a grammar.
        first_id: a token that is legal there; None if none is.
    """

    def __init__(self, matcher: LLMatcher, first_id: int | None):
        self._matcher = matcher
        self._first_id = first_id
        self._watch = matcher.deep_copy()

    def copy(self) -> Reader:
        """Another one that has read as much."""
        other = Reader.__new__(Reader)
        other._matcher, other._first_id = self._matcher.deep_copy(), self._first_id
        other._watch = self._watch.deep_copy()
        return other

    def read(self, ids: Sequence[int]) -> None:
        """Take tokens that are known to be legal."""
        self._matcher.try_consume_tokens(list(ids))

    def ask(self, question: Callable[[LLMatcher], bool | int]) -> bool | None:
        """The library's answer; None if it is worth nothing, because the lexer is used up."""
        answer = question(self._matcher)
        if self._matcher.is_error() and any(e in self._matcher.get_error() for e in _USED_UP):
            return None
        if self._first_id is not None and not self._watch.validate_tokens([self._first_id]):
            return None
        return bool(answer)

    @property
    def error(self) -> str:
        """What the library says against going on; empty if nothing."""
        return self._matcher.get_error()


def first_id(matcher: LLMatcher, vocabulary: Vocabulary) -> int | None:
    """A token that may come first; None if only the end may."""
    row = np.zeros(vocabulary.words, np.int32)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    forbid(row, vocabulary.end_ids)
    words = np.flatnonzero(row)
    if matcher.is_error() or not len(words):
        return None
    lowest = WORD_BITS * int(words[0])
    return next(id for id in range(lowest, lowest + WORD_BITS) if allows(row, id))
