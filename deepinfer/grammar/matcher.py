"""A compiled grammar, and where one text stands in it: masks, acceptance, roll-back.

It wraps the matching library so that nothing it does can end more than one request. It does not
know where the tokens come from, nor what a step is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from itertools import chain
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from deepinfer.errors import RequestError
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.library import reason_of
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.mask_row import allow, allows, forbid
from deepinfer.grammar.raw_text import CLOSING
from deepinfer.grammar.reader import Reader, first_id
from deepinfer.grammar.start import AT_ONCE, BEGIN, After, Start
from deepinfer.grammar.vocabulary import Vocabulary

# What the library says if the tokens cannot spell what must come next. It is no defect of it.
_NOTHING_FITS = "NoExtensionBias"
_ENDED = -2  # beside the states of `Start`: an end token was accepted


class Grammar:
    """A constraint that was compiled for one vocabulary; any number of texts may follow it.

    Attributes:
        constraint: what was asked for.
        vocabulary: the tokens its masks are about.
        translated: the same in the language of the matching library.
        avoided: what tokens of text never spell inside it, in UTF-8; empty if nothing.
    """

    def __init__(
        self,
        constraint: Constraint,
        vocabulary: Vocabulary,
        translated: str,
        limits: Limits | None = None,
    ):
        """Build the matcher that all texts start from.

        Raises:
            RequestError: the library refuses it.
        """
        self.constraint = constraint
        self.vocabulary = vocabulary
        self.translated = translated
        # Readers of tool calls end a value there, also in the middle of a JSON string.
        self.avoided = CLOSING.encode() if constraint.kind == "tool_calls" else b""
        self._limits = (limits or Limits()).for_library()
        self._lock = threading.Lock()
        first = self._library_matcher()
        if first.is_error():
            raise RequestError(f"{constraint.kind}: {reason_of(first.get_error())}")
        self._first_id = first_id(first.deep_copy(), vocabulary)
        self._first: Reader | None = Reader(first, self._first_id)

    def matcher(self, start: Start = AT_ONCE) -> Matcher:
        """A new text that follows the grammar from `start` on."""
        return Matcher(self, start)

    def new_reader(self) -> Reader:
        """The library at the beginning of the grammar."""
        with self._lock:
            if self._first is None:
                self._first = Reader(self._library_matcher(), self._first_id)
            return self._first.copy()

    def renewed_reader(self) -> Reader:
        """The same, whose lexer knows nothing of other texts and will not.

        Whether a text can go on must not depend on the others.
        """
        with self._lock:
            self._first = None
        return Reader(self._library_matcher(), self._first_id)

    def _library_matcher(self) -> LLMatcher:
        return LLMatcher(self.vocabulary.library, self.translated, log_level=0, limits=self._limits)


class _Frame(NamedTuple):
    """What one token changed.

    Attributes:
        id: the token.
        state: the state before it.
        readers: those of the library before it.
        consumed: whether the last of them took it.
        tail: the end of the text before it.
    """

    id: int
    state: int
    readers: int
    consumed: bool
    tail: bytes


class Matcher:
    """Where one text stands: before the grammar, inside it, or ended.

    Every accepted token can be rolled back, the end token and those before the grammar included.

    Raises (every method that asks the library):
        RequestError: the grammar needs more work in one step than its limits allow.
    """

    def __init__(self, grammar: Grammar, start: Start = AT_ONCE):
        ends = set(grammar.vocabulary.end_ids)
        if isinstance(start, After) and ends & {*start.trigger, start.bound}:
            raise RequestError(f"trigger {start.trigger}: end tokens {sorted(ends)} end the text")
        self.grammar = grammar
        self.start = start
        self._frames: list[_Frame] = []
        self._before: Sequence[_Frame] = ()  # of the matcher that a probe was made of
        self._tail = b""  # how far the avoided text has been spelled
        # One for each time the grammar began; all but the last are kept only for roll-back.
        self._readers: list[Reader] = []
        self._state = start.first_state
        if self._state == BEGIN:
            self._readers.append(grammar.new_reader())

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far."""
        return len(self._frames)

    @property
    def is_terminated(self) -> bool:
        """Whether an end token was accepted: nothing is legal any more."""
        return self._state == _ENDED

    @property
    def is_free(self) -> bool:
        """Whether every id of the model is legal, so that no mask is needed."""
        return self._state >= 0 and self.start.repeats

    def is_free_after(self, drafts: Sequence[int]) -> bool:
        """Whether every id is legal now, and after each of `drafts` up to an end token."""
        if not self.is_free:
            return False
        state, vocabulary = self._state, self.grammar.vocabulary
        for id in drafts:
            if id in vocabulary.end_ids:
                return True
            state = self.start.advance(state, id, vocabulary)
            if state == BEGIN:
                return False
        return True

    @property
    def is_complete(self) -> bool:
        """Whether the text could end here: it satisfies the constraint."""
        if self._state == BEGIN:
            return self._ask(LLMatcher.is_accepting)
        return self._state == _ENDED or self.start.repeats

    def accept(self, ids: Sequence[int]) -> int:
        """Take tokens up to the first illegal one.

        Args:
            ids: token ids; one outside [0, vocabulary.size) is illegal.

        Returns:
            How many were taken.
        """
        for taken, id in enumerate(ids):
            if not self._accept(id):
                return taken
        return len(ids)

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens, 0 <= count <= num_tokens.

        The grammar is read again from its beginning, some microseconds a token: the library has a
        roll-back, but may give the old mask afterwards when the new text is as long.
        """
        assert 0 <= count <= self.num_tokens, f"{count} of {self.num_tokens} tokens"
        stale = False
        for _ in range(count):
            frame = self._frames.pop()
            stale = frame.consumed or (stale and frame.readers == len(self._readers))
            del self._readers[frame.readers :]
            self._state = frame.state
            self._tail = frame.tail
        if stale:
            self._readers[-1] = self._replayed(self.grammar.new_reader())

    def copy(self) -> Matcher:
        """Another text that has come as far."""
        other = Matcher.__new__(Matcher)
        other.grammar, other.start, other._state = self.grammar, self.start, self._state
        other._before, other._frames = (), list(self._frames)
        other._tail = self._tail
        other._readers = [reader.copy() for reader in self._readers]
        return other

    def fill_mask(self, row: NDArray[np.int32]) -> bool:
        """Write which ids are legal now.

        Args:
            row: int32 [vocabulary.words], contiguous; bit i of word w stands for id 32 w + i.

        Returns:
            Whether any id is legal. If none is, the request cannot go on.

        Writes:
            `row`, all of it.
        """
        vocabulary = self.grammar.vocabulary
        assert row.dtype == np.int32, f"mask of {row.dtype}"
        assert row.shape == (vocabulary.words,), f"mask row of {row.shape}"
        assert row.flags.c_contiguous, "the library writes one run of memory"
        assert not self.is_terminated, "an ended text has no next token"
        if self._state == BEGIN:
            self._fill_inner(row)
        elif (only := self.start.forced(self._state)) is not None:
            row[:] = 0
            allow(row, (only,))
        else:
            row[:] = vocabulary.all_ones
            if not self.start.repeats:
                forbid(row, vocabulary.end_ids)
        return bool(np.count_nonzero(row))

    def fill_masks(self, drafts: Sequence[int], rows: NDArray[np.int32]) -> int:
        """Write a mask for the next token and one for the token after each legal draft.

        The matcher is left where it was. Rows after the first illegal draft and after an end token
        allow everything: what stands there is never kept. A draft after which no token would be
        legal counts as illegal.

        Args:
            drafts: proposed ids.
            rows: int32 [at least len(drafts) + 1, vocabulary.words], contiguous.

        Returns:
            How many drafts are legal; -1 if no id at all is legal now.

        Writes:
            the first len(drafts) + 1 rows.
        """
        legal = filled = 0
        if not self.is_terminated:
            if not self.fill_mask(rows[0]):
                legal, filled = -1, 1
            else:
                legal = self._fill_after(drafts, rows)
                filled = legal + 1
        rows[filled : len(drafts) + 1] = self.grammar.vocabulary.all_ones
        return legal

    def _fill_after(self, drafts: Sequence[int], rows: NDArray[np.int32]) -> int:
        """Write the mask after each draft; the first row is the mask before.

        Returns:
            How many of them are legal.

        Writes:
            a row for each legal draft that does not end the text, and anything in the next one.
        """
        probe, vocabulary = self._probe(), self.grammar.vocabulary
        for place, id in enumerate(drafts):
            known = 0 <= id < vocabulary.size and allows(rows[place], id)
            if not known or not probe._take(id, rows[place + 1]):
                return place
            if probe.is_terminated:
                rows[place + 1] = vocabulary.all_ones
                return place + 1
        return len(drafts)

    def _take(self, id: int, row: NDArray[np.int32]) -> bool:
        """Accept a token if it is legal and another one can follow it or the text ends with it.

        Writes:
            `row`: the mask after it, unless the text ends. If the answer is False, anything, and
            the matcher may be of no more use.
        """
        try:
            return self._accept(id) and (self.is_terminated or self.fill_mask(row))
        except RequestError:
            return False

    def _probe(self) -> Matcher:
        """A copy that cannot be rolled back."""
        probe = Matcher.__new__(Matcher)
        probe.grammar, probe.start, probe._state = self.grammar, self.start, self._state
        probe._before, probe._frames = self._frames, []
        probe._tail = self._tail
        probe._readers = [*self._readers[:-1], *(reader.copy() for reader in self._readers[-1:])]
        return probe

    def _accept(self, id: int) -> bool:
        vocabulary = self.grammar.vocabulary
        if self._state == _ENDED or not 0 <= id < vocabulary.size:
            return False
        consumes = self._state == BEGIN and id not in vocabulary.end_ids
        frame = _Frame(id, self._state, len(self._readers), consumes, self._tail)
        if consumes:
            legal = self._accept_inside(id)
        elif id in vocabulary.end_ids:
            legal = self.is_complete
            if legal:
                self._state = _ENDED
        else:
            legal = self._accept_outside(id)
        if legal:
            self._frames.append(frame)
        return legal

    def _accept_inside(self, id: int) -> bool:
        if self._tail and id in self._forbidden_ids():
            return False
        if not self._ask(lambda inner: inner.try_consume_tokens([id])):
            return False
        if self.grammar.avoided:
            self._tail = self._spelled(id)
        if self.start.repeats and self._ask(LLMatcher.is_stopped):
            self._state = self.start.first_state
        return True

    def _accept_outside(self, id: int) -> bool:
        forced = self.start.forced(self._state)
        if forced is not None and id != forced:
            return False
        self._state = self.start.advance(self._state, id, self.grammar.vocabulary)
        if self._state == BEGIN:
            self._readers.append(self.grammar.new_reader())
        return True

    def _fill_inner(self, row: NDArray[np.int32]) -> None:
        ends = self.grammar.vocabulary.end_ids

        def fill(inner: LLMatcher) -> bool:
            if inner.is_stopped():  # complete, and nothing can follow; or it has given up
                row[:] = 0
                (allow if inner.is_accepting() else forbid)(row, ends)
            else:  # it sets the bits of end tokens, too
                # Four times as quick as `row.ctypes.data`.
                inner.unsafe_compute_mask_ptr(addressof(c_char.from_buffer(row.data)), row.nbytes)
            return not inner.is_error()

        if not self._ask(fill):
            row[:] = 0
        if self._tail:
            forbid(row, self._forbidden_ids())

    def _spelled(self, id: int) -> bytes:
        """How far tokens of text have spelled the avoided text, with one more token."""
        vocabulary, avoided = self.grammar.vocabulary, self.grammar.avoided
        if id in vocabulary.control:
            return b""
        text = self._tail + vocabulary.token_bytes(id)
        lengths = range(min(len(text), len(avoided)), 0, -1)
        return next((avoided[:n] for n in lengths if text.endswith(avoided[:n])), b"")

    def _forbidden_ids(self) -> tuple[int, ...]:
        """Tokens that would complete the avoided text, which does not overlap itself."""
        return self.grammar.vocabulary.starting_with(self.grammar.avoided[len(self._tail) :])

    def _ask(self, question: Callable[[LLMatcher], bool | int]) -> bool:
        """The library's answer, asked once more if other texts have used up its lexer."""
        reader = self._readers[-1]
        answer = reader.ask(question)
        if answer is None:
            reader = self._readers[-1] = self._replayed(self.grammar.renewed_reader())
            answer = reader.ask(question)
        error = reason_of(reader.error) if reader.error else ""
        if answer is None or (error and error != _NOTHING_FITS):
            raise RequestError(
                f"the constraint cannot go on after {self.num_tokens} tokens: "
                f"{error or 'it needs more states than its limits allow'}"
            )
        return answer

    def _replayed(self, reader: Reader) -> Reader:
        """`reader`, which has read nothing, where the last one stands."""
        ids: list[int] = []
        for frame in chain(reversed(self._frames), reversed(self._before)):
            if not frame.consumed or frame.readers < len(self._readers):
                break
            ids.append(frame.id)
        reader.read(ids[::-1])
        return reader
