"""Reading blocks of tool calls that are written wrongly, as public reports show them.

It does not know how a call is repaired; repair.py does.

Other bars than the token's, tags without the token, a missing or wrong attribute, a body of JSON
and several blocks are understood. A call is told when it is complete, not while it is generated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from deepinfer.recipe.conversation import ToolDefinition
from deepinfer.recipe.parse.match import Literals
from deepinfer.recipe.parse.opening import Opening
from deepinfer.recipe.parse.repair import Fields, Repair, fields_of
from deepinfer.recipe.parse.spans import Label, Span
from deepinfer.recipe.parse.staged import Outcome, StagedReader

_ASCII_BARS = "|DSML|"
_INVOKE = "invoke name"
_WRAPPERS = ("tool_calls", "function_calls")
_LONGEST_TAG = 64
_BLANK = re.compile(r"\s{0,16}")


class _Style:
    """The tags with one spelling of the token; an empty one for tags without it."""

    def __init__(self, tag: str, tools: Mapping[str, Fields]) -> None:
        spaces = ("", " ") if tag else ("",)
        self.wrappers = [] if tag else [f"<{name}>" for name in _WRAPPERS]
        self.invokes = [f"<{tag}{space}{_INVOKE}" for space in spaces]
        self.finished = [f"</{tag}{space}invoke>" for space in spaces]
        names = (*_WRAPPERS, "calls") if tag else _WRAPPERS
        self.closing = [f"</{tag}{space}{name}>" for space in spaces for name in names]
        self.body = Literals(self.finished + self.closing + self.invokes)
        self.repair = Repair(tag, tools)


class LenientReader(StagedReader):
    """Blocks of tool calls, read leniently.

    Args:
        dsml: the spelling of the DSML token, without brackets.
        tools: those that may be called.
    """

    resumes = True  # after a block the answer goes on

    def __init__(self, dsml: str, tools: Sequence[ToolDefinition] = ()) -> None:
        tags = (dsml, _ASCII_BARS, "")
        known = {tool.name: fields_of(tool) for tool in tools}
        self._styles = [_Style(tag, known) for tag in tags]
        self._closing = [end for style in self._styles for end in style.closing]
        self._invokes = [start for style in self._styles for start in style.invokes]
        self._of_invoke = [style for style in self._styles for _ in style.invokes]
        self._between_literals = Literals(self._closing + self._invokes)
        self._openings = {f"<{tag}": Opening(tag) for tag in tags if tag}
        bare = self._styles[-1]
        super().__init__([*self._openings, *bare.invokes, *bare.wrappers])
        self._opening: Opening | None = None
        self._style = bare
        self._wrapped = True
        self._body: list[str] = []

    def open(self, marker: str) -> None:
        """Start after the marker, which may be that of a call without a block."""
        self.outcome, self.called, self._raw = Outcome.OPEN, False, [marker]
        literal = marker.lstrip("\n")
        self._opening = self._openings.get(literal)
        self._stage = self._candidate
        self._wrapped = literal not in self._invokes
        if not self._wrapped:
            self._begin_call(self._invokes.index(literal))

    def finish(self, held: str, truncated: bool, out: list[Span]) -> None:
        """The output ended; a call that was cut off is completed."""
        self._raw.append(held)
        if self._stage == self._read_body:
            self._body.append(held)
            self._end_call(out)
        if self.called:
            self._forget(out)
        else:
            self.outcome = Outcome.NO_CALLS

    def _candidate(self, text: str, start: int, out: list[Span]) -> int:
        opens = self._opens(text, start)
        if opens is False:
            self.outcome = Outcome.NO_BLOCK
        if not opens:
            return start
        self._stage = self._between
        marker = self.raw().lstrip("\n")
        for space in ("", " "):
            if text.startswith(space + _INVOKE, start):  # there is no wrapper
                self._wrapped = False
                self._begin_call(self._invokes.index(marker + space + _INVOKE))
                self._raw.append(space + _INVOKE)
                return start + len(space + _INVOKE)
        return start

    def _opens(self, text: str, start: int) -> bool | None:
        if self._opening is not None:
            return self._opening.judge(text, start)
        return self._tag_follows(text, start, tuple(self._invokes))

    def _tag_follows(self, text: str, start: int, tags: tuple[str, ...]) -> bool | None:
        """Whether only blanks stand before one of the tags; None while that is open."""
        blank = _BLANK.match(text, start)
        start = start if blank is None else blank.end()
        if text.startswith(tags, start):
            return True
        rest = text[start : start + _LONGEST_TAG]
        return None if any(tag.startswith(rest) for tag in tags) else False

    def _between(self, text: str, start: int, out: list[Span]) -> int:
        if not self._wrapped:
            follows = self._tag_follows(text, start, (*self._invokes, *self._closing))
            if follows is False:
                self._close(out)
            if not follows:
                return start
        found = self._between_literals.find(text, start)
        if found is None:
            keep = self._between_literals.partial(text, start)
            self._raw.append(text[start:keep])
            return keep
        index, _, end = found
        self._raw.append(text[start:end])
        if index >= len(self._closing):
            self._begin_call(index - len(self._closing))
        else:
            self._close(out)
        return end

    def _begin_call(self, index: int) -> None:
        self._style = self._of_invoke[index]
        self._body, self._stage = [], self._read_body

    def _read_body(self, text: str, start: int, out: list[Span]) -> int:
        style = self._style
        found = style.body.find(text, start)
        end = style.body.partial(text, start) if found is None else found[2]
        self._raw.append(text[start:end])
        if found is None:
            self._body.append(text[start:end])
            return end
        index, at, _ = found
        self._body.append(text[start:at])
        self._end_call(out)
        self._body = []
        if index < len(style.finished):
            self._stage = self._between
        elif index < len(style.finished) + len(style.closing):
            self._close(out)
        return end

    def _end_call(self, out: list[Span]) -> None:
        call = self._style.repair.call("".join(self._body))
        if call is None:
            return
        self.called = True
        self._forget(out)
        out.append(Span(Label.CALL, call[0], 0))
        out.append(Span(Label.ARGUMENTS, call[1], 0))

    def _close(self, out: list[Span]) -> None:
        if self.called:
            self._forget(out)
        self.outcome = Outcome.CLOSED if self.called else Outcome.NO_CALLS
