"""Cuts labelled spans at the borders of the chunks that the output came in.

It does not know what the labels are found by; machine.py does.

One piece a chunk and label is what clients get as one delta. A chunk whose end is undecided
waits as a whole, so that deltas and the tokens of a chunk stay together (recipe.md 3.3), and
so does what a mark adds when it stands right before undecided text.
"""

from __future__ import annotations

import json
from collections import deque

from deepinfer.recipe.options import ParsingOptions
from deepinfer.recipe.parse.machine import Machine
from deepinfer.recipe.parse.marks import Marks
from deepinfer.recipe.parse.spans import Label, Span

_WHOLE = (Label.REASONING, Label.CONTENT)
_RUNNING = (*_WHOLE, Label.KEY, Label.STRING, Label.JSON)
_ADDED = (Label.CALL, Label.ARGUMENTS, Label.FIXED)
_encode = json.JSONEncoder(ensure_ascii=False).encode


def escaped(text: str) -> str:
    """The inside of a JSON string that spells `text`."""
    return _encode(text)[1:-1]


class OutputParser:
    """Parses the output of one answer.

    Args:
        options: what to look for, and where the output starts.
        marks: how special tokens look in the output; by default as they are spelt.
    """

    def __init__(self, options: ParsingOptions, marks: Marks | None = None) -> None:
        self._marks = Marks.spelt(options.special_tokens) if marks is None else marks
        self._machine = Machine(options, self._marks)
        self._ends: deque[int] = deque()  # of chunks that are not labelled up to their end
        self._fed = 0
        self._labelled = 0
        self._complete = 0  # where the last chunk ends that is labelled up to its end
        self._label = Label.SKIP
        self._pending: list[str] = []
        self._waiting: list[Span] = []

    def feed(self, text: str) -> list[Span]:
        """Parse one chunk.

        Args:
            text: any cut of the output, also an empty one.

        Returns:
            What is certain now, with the labels down to `STOP`. The texts of a label join to
            the same text for every cut of the output.
        """
        spans = self._machine.feed(text)
        size = len(text)
        if not size:
            return []
        whole = self._fed == self._labelled and not self._pending
        self._fed += size
        if whole and len(spans) == 1 and spans[0][2] == size and spans[0][0] in _WHOLE:
            self._labelled = self._complete = self._fed
            label, text, _ = spans[0]
            return [Span(label, self._marks.shown(text), size)] if self._marks.spellings else spans
        self._ends.append(self._fed)
        return self._cut(spans)

    def finish(self, truncated: bool) -> list[Span]:
        """The output is over: give out what was held back.

        Args:
            truncated: it was cut off, so an unfinished opening of a block is markup, not text.
        """
        pieces = self._cut(self._machine.finish(truncated))
        pieces += self._waiting
        self._waiting = []
        self._flush(pieces)
        return pieces

    def _cut(self, spans: list[Span]) -> list[Span]:
        if not spans:
            return []
        pieces, self._waiting = self._waiting, []
        for span in spans:
            label = span.label
            if label in _RUNNING:
                if label is not self._label:
                    self._flush(pieces)
                    self._label = label
                self._add(span.text, pieces)
                continue
            self._flush(pieces)
            self._labelled += span.size
            while self._ends and self._ends[0] <= self._labelled:
                self._complete = self._ends.popleft()
            if label is Label.FIXED:
                label = Label.CONTENT
            pieces.append(Span(label, self._marks.shown(span.text), span.size))
        if self._ends and spans and spans[-1].label in _ADDED:
            begun = self._labelled - spans[-1].size
            if self._complete <= begun and self._complete < self._labelled:
                self._waiting = [pieces.pop()]
        return pieces

    def _add(self, text: str, pieces: list[Span]) -> None:
        start = 0
        while start < len(text):
            room = self._ends[0] - self._labelled
            part = text[start : start + room]
            self._pending.append(part)
            self._labelled += len(part)
            start += len(part)
            if len(part) == room:
                self._complete = self._ends.popleft()
                self._flush(pieces)

    def _flush(self, pieces: list[Span]) -> None:
        if not self._pending:
            return
        source = "".join(self._pending)
        self._pending = []
        label, text = self._label, self._marks.shown(source)
        if label is Label.STRING:
            text = escaped(text)
        elif label is Label.KEY:
            text = '"'.join(map(escaped, text.split('"')))
        if label not in _WHOLE:
            label = Label.ARGUMENTS
        pieces.append(Span(label, text, len(source)))
