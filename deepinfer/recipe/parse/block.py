"""Reading a block of tool calls: names, and arguments as JSON text while they are generated.

It does not know what comes before the block; machine.py does.

The dialect marks a block up with `<｜DSML｜ calls>`, `invoke` and `parameter` tags (recipe.md 2.2,
3.2). Only the marker, the attributes and the closing marker are looked at, so that V4, V4.1 and
damaged wrappers read the same. Text is kept until the first call is certain: what turns out to
be no block of calls is given back.
"""

from __future__ import annotations

import re

from deepinfer.recipe.parse.match import Literals
from deepinfer.recipe.parse.opening import Opening
from deepinfer.recipe.parse.spans import Label, Span
from deepinfer.recipe.parse.staged import Outcome, StagedReader

_NAME_END = re.compile(r'["\n]')


class BlockReader(StagedReader):
    """One block of tool calls.

    Args:
        dsml: the spelling of the DSML token, without brackets.
    """

    resumes = False  # after the block the answer is over

    def __init__(self, dsml: str) -> None:
        super().__init__([f"<{dsml}"])
        self._opening = Opening(dsml)
        closing = [f"</{dsml}tool_calls>", f"</{dsml} calls>"]
        self._between_literals = Literals(['invoke name="', *closing])
        self._argument_literals = Literals(["parameter name=", f"</{dsml}"])
        self._type_literals = Literals(['true">', 'false">'])
        self._value_literals = Literals([f"</{dsml}"])
        self._name: list[str] = []
        self._first = True
        self._value_label = Label.STRING

    def open(self, marker: str) -> None:
        """Start after the marker; whether it opens a block is still open."""
        self.outcome, self._raw, self._stage = Outcome.OPEN, [marker], self._candidate

    def finish(self, held: str, truncated: bool, out: list[Span]) -> None:
        """The output ended; a begun value is given out, an opening cut off is markup."""
        if self._stage == self._value:
            out.append(Span(self._value_label, held, len(held)))
        elif self.called:
            out.append(Span(Label.SKIP, "", len(held)))
        else:
            self._raw.append(held)
            if truncated and self._opening.begins("".join(self._raw)):
                self._forget(out)
            else:
                self.outcome = Outcome.NO_CALLS

    def _skip(self, piece: str, out: list[Span]) -> None:
        if self.called:
            if piece:
                out.append(Span(Label.SKIP, "", len(piece)))
        else:
            self._raw.append(piece)

    def _candidate(self, text: str, start: int, out: list[Span]) -> int:
        opens = self._opening.judge(text, start)
        if opens:
            self._stage = self._between
        elif opens is False:
            self.outcome = Outcome.NO_BLOCK
        return start

    def _between(self, text: str, start: int, out: list[Span]) -> int:
        found = self._between_literals.find(text, start)
        if found is None:
            keep = self._between_literals.partial(text, start)
            self._skip(text[start:keep], out)
            return keep
        index, _, end = found
        self._skip(text[start:end], out)
        if index == 0:
            self._name = []
            self._stage = self._tool_name
        elif self.called:
            self.outcome = Outcome.CLOSED
        elif self._opening.is_empty_block(self.raw()):
            self._forget(out)
            self.outcome = Outcome.CLOSED
        else:
            self.outcome = Outcome.NO_CALLS
        return end

    def _tool_name(self, text: str, start: int, out: list[Span]) -> int:
        match = _NAME_END.search(text, start)
        end = len(text) if match is None else match.end()
        piece = text[start:end]
        self._skip(piece, out)
        if match is None:
            self._name.append(piece)
        elif piece[-1] == "\n":  # no tool is called that: the quote is prose
            self._stage = self._between
        else:
            self._name.append(piece[:-1])
            if not self.called:
                self.called = True
                self._forget(out)
            out.append(Span(Label.CALL, "".join(self._name), 0))
            self._first = True
            self._stage = self._arguments
        return end

    def _arguments(self, text: str, start: int, out: list[Span]) -> int:
        found = self._argument_literals.find(text, start)
        if found is None:
            keep = self._argument_literals.partial(text, start)
            self._skip(text[start:keep], out)
            return keep
        index, at, end = found
        self._skip(text[start:at], out)
        if index == 0:
            added = "{" if self._first else ", "
            self._stage = self._key_start
        else:
            added = "{}" if self._first else "}"
            self._stage = self._between
        out.append(Span(Label.ARGUMENTS, added, end - at))
        self._first = False
        return end

    def _key_start(self, text: str, start: int, out: list[Span]) -> int:
        at = text.find('"', start)
        if at == -1:
            self._skip(text[start:], out)
            return len(text)
        self._skip(text[start:at], out)
        out.append(Span(Label.KEY, '"', 1))
        self._stage = self._key
        return at + 1

    def _key(self, text: str, start: int, out: list[Span]) -> int:
        at = text.find('"', start)
        end = len(text) if at == -1 else at + 1
        out.append(Span(Label.KEY, text[start:end], end - start))
        if at != -1:
            self._stage = self._key_end
        return end

    def _key_end(self, text: str, start: int, out: list[Span]) -> int:
        end = start + (text[start] == " ")
        out.append(Span(Label.ARGUMENTS, ": ", end - start))
        self._stage = self._type
        return end

    def _type(self, text: str, start: int, out: list[Span]) -> int:
        found = self._type_literals.find(text, start)
        if found is None:
            keep = self._type_literals.partial(text, start)
            self._skip(text[start:keep], out)
            return keep
        index, at, end = found
        self._skip(text[start:at], out)
        if index == 0:
            out.append(Span(Label.ARGUMENTS, '"', end - at))
        else:
            self._skip(text[at:end], out)
        self._value_label = Label.JSON if index else Label.STRING
        self._stage = self._value
        return end

    def _value(self, text: str, start: int, out: list[Span]) -> int:
        found = self._value_literals.find(text, start)
        stop = self._value_literals.partial(text, start) if found is None else found[1]
        if stop > start:
            out.append(Span(self._value_label, text[start:stop], stop - start))
        if found is None:
            return stop
        end = found[2]
        if self._value_label is Label.STRING:
            out.append(Span(Label.ARGUMENTS, '"', end - stop))
        else:
            self._skip(text[stop:end], out)
        self._stage = self._arguments
        return end
