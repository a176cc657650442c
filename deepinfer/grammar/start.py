"""When a grammar begins: at once, after a sequence of tokens, or at each mark in free text.

A start is an automaton over token ids; it does not know what the grammar says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from deepinfer.grammar.vocabulary import Vocabulary

BEGIN = -1  # state of either automaton: the grammar starts with the next token


@dataclass(frozen=True)
class After:
    """Once, after a sequence of tokens; the text may not end before the grammar allows it.

    States: `BEGIN`; below the length of the trigger, how many of its ids were just seen; from that
    length on the same plus the length, once `bound` was seen.

    Attributes:
        trigger: ids that must be produced one after the other; empty = the grammar starts at once.
        bound: after this id the rest of the trigger is forced (original-surface.md 6).
    """

    trigger: tuple[int, ...] = ()
    bound: int | None = None
    repeats = False

    @property
    def first_state(self) -> int:
        """The state before any token."""
        return 0 if self.trigger else BEGIN

    def forced(self, state: int) -> int | None:
        """The only legal id in `state`, None if every id but the end tokens is."""
        length = len(self.trigger)
        return self.trigger[state - length] if state >= length else None

    def advance(self, state: int, id: int, vocabulary: Vocabulary) -> int:
        """The state after one more token, which is `forced(state)` if that is not None."""
        del vocabulary  # ids are all that counts here
        length = len(self.trigger)
        if state >= length:
            assert id == self.forced(state)
            return BEGIN if state + 1 == 2 * length else state + 1
        state = self._longest(state, id)
        if state == length:
            return BEGIN
        return state + length if id == self.bound else state

    def _longest(self, state: int, id: int) -> int:
        """Length of the longest beginning of the trigger that ends with this token."""
        while state and self.trigger[state] != id:
            state = self._borders[state]
        return state + 1 if self.trigger[state] == id else 0

    @cached_property
    def _borders(self) -> list[int]:
        """For each length of a beginning, the length of its longest proper border."""
        borders = [0, 0]
        for id in self.trigger[1:]:
            length = borders[-1]
            while length and self.trigger[length] != id:
                length = borders[length]
            borders.append(length + 1 if self.trigger[length] == id else 0)
        return borders


@dataclass(frozen=True)
class AtEach:
    """At each mark in otherwise free text, which may also end; free again after each grammar.

    Attributes:
        mark: the id that starts the grammar.
        before: the token before the mark must end with these bytes, else it is text.
    """

    mark: int
    before: bytes
    repeats = True
    first_state = 0

    def forced(self, state: int) -> int | None:
        """None: in free text every id is legal."""
        del state

    def advance(self, state: int, id: int, vocabulary: Vocabulary) -> int:
        """The state after one more token: 1 after `before`, `BEGIN` after the mark behind it."""
        if state and id == self.mark:
            return BEGIN
        return int(vocabulary.token_bytes(id).endswith(self.before))


Start = After | AtEach
AT_ONCE = After()
