"""The parser of model output: reasoning, content, tool calls, stop sequences, JSON answers.

It does not know which protocol the answer is for.

Every stage searches a few literals; what could still become one is held back (recipe.md 3.2,
3.3). Runs of newlines before a mark belong to it; a pending run is a count, not text, so that
a flood of newlines stays linear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from deepinfer.recipe.options import ParsingOptions, ThinkingInitialStage
from deepinfer.recipe.parse.block import BlockReader
from deepinfer.recipe.parse.lenient import LenientReader
from deepinfer.recipe.parse.marks import Marks
from deepinfer.recipe.parse.match import Literals
from deepinfer.recipe.parse.spans import Label, Span
from deepinfer.recipe.parse.staged import Outcome, StagedReader

_Stage: TypeAlias = Callable[[str, int], int]
_FENCE = "```"


class _Found(Enum):
    STOP = auto()
    THINKING_END = auto()
    MARKER = auto()
    FENCE = auto()
    BRACKET = auto()
    JSON_END = auto()


@dataclass(frozen=True)
class _TextStage:
    """A stage of running text: its literals, and what its other text becomes.

    Newlines before one of the `marks` belong to the mark; `plain` literals stand alone.
    With `blank` the text becomes one blank. Leading newlines are dropped, unless one alone is a
    stop sequence.
    """

    label: Label
    kinds: tuple[_Found, ...]
    literals: Literals
    plain: Literals
    marks: Literals
    swallows: frozenset[_Found]
    blank: bool
    drops_leading: bool


def _text_stage(
    label: Label,
    found: Sequence[tuple[_Found, str]],
    swallows: frozenset[_Found],
    blank: bool = False,
) -> _TextStage:
    swallows = swallows.intersection(kind for kind, _ in found)
    return _TextStage(
        label,
        tuple(kind for kind, _ in found),
        Literals([literal for _, literal in found]),
        Literals([literal for kind, literal in found if kind not in swallows]),
        Literals([literal for kind, literal in found if kind in swallows]),
        swallows,
        blank,
        (_Found.STOP, "\n") not in found,
    )


class _Stages:
    """The text stages of one set of options; without `markers` tool calls are not looked for."""

    def __init__(self, stops: Sequence[str], thinking_end: str, markers: Sequence[str]) -> None:
        marks = [(_Found.MARKER, marker) for marker in markers]
        ends = [(_Found.THINKING_END, thinking_end)]
        stopping = [(_Found.STOP, stop) for stop in stops]
        both = frozenset({_Found.MARKER, _Found.THINKING_END})
        only_marker = frozenset({_Found.MARKER})
        fences = [(_Found.FENCE, f"{_FENCE}json\n"), (_Found.FENCE, f"{_FENCE}\n")]
        brackets = [(_Found.BRACKET, "{"), (_Found.BRACKET, "[")]
        content = Label.CONTENT
        self.reasoning = _text_stage(Label.REASONING, marks + ends, both)
        self.content = _text_stage(content, stopping + marks + ends, only_marker)
        self.before_json = _text_stage(
            content, fences + brackets + marks + ends, only_marker, blank=True
        )
        json_end = [(_Found.JSON_END, f"\n{_FENCE}")]
        self.json = _text_stage(content, stopping + json_end, frozenset())
        self.after_json = _text_stage(content, marks, only_marker, blank=True)


class Machine:
    """Labels the output of one answer.

    Args:
        options: what to look for, and where the output starts.
        marks: how special tokens look in it.
    """

    def __init__(self, options: ParsingOptions, marks: Marks) -> None:
        stops: list[str] = []
        for stop in filter(None, options.stop_sequences):
            stops += dict.fromkeys((stop, marks.hidden(stop)))
        self._block: StagedReader = BlockReader(marks.dsml)
        if options.lenient:
            self._block = LenientReader(marks.dsml, options.tools)
        markers = self._block.markers if options.parse_tool_calls else []
        self._marked = _Stages(stops, marks.thinking_end, markers)
        self._unmarked = _Stages(stops, marks.thinking_end, [])
        self._stages = self._marked
        self._json_output = options.parse_json_output
        self._out: list[Span] = []
        self._held = ""
        self._prose = ""  # the end of what was no block, where another literal may begin
        self._newlines = 0
        self._leading = True
        self._blank_written = False
        self._read: _Stage = self._read_text
        self._text = self._answer()
        self._start(options)

    def _start(self, options: ParsingOptions) -> None:
        initial = options.thinking_initial_stage
        if options.starts_in_tool_calls:
            self._block.open_inside()
            self._read = self._read_block
        elif initial is not None and initial is not ThinkingInitialStage.ContentContinuation:
            self._text = self._stages.reasoning
        if initial is not None:
            self._leading = initial is ThinkingInitialStage.ReasoningStart

    def _answer(self) -> _TextStage:
        return self._stages.before_json if self._json_output else self._stages.content

    def feed(self, text: str) -> list[Span]:
        """Parse more output.

        Args:
            text: any piece, also an empty one.

        Returns:
            The spans that are certain now.
        """
        if self._held:
            text = self._held + text
            self._held = ""
        self._run(text)
        spans, self._out = self._out, []
        return spans

    def finish(self, truncated: bool) -> list[Span]:
        """The output is over: give out what was held back.

        Args:
            truncated: it was cut off, so an unfinished opening of a block is markup, not text.
        """
        if self._prose:
            self._let_go()
            self._run(self._held)
        held, self._held = self._held, ""
        if self._read == self._read_block:
            self._block.finish(held, truncated, self._out)
            if self._block.outcome is Outcome.NO_CALLS:
                self._release()
                self._let_go()
            held = ""
        self._write(held, 0, len(held))  # and newlines that belong to no mark
        spans, self._out = self._out, []
        return spans

    def _run(self, text: str) -> None:
        start, size = 0, len(text)
        while start < size:
            read, stage = self._read, self._text
            end = read(text, start)
            if end == start and self._read is read and self._text is stage:
                break
            start = end
        self._held = text[start:]

    def _write(self, text: str, start: int, end: int) -> None:
        """Text of the stage, with the newlines that were pending before it."""
        size = self._newlines + end - start
        if not size:
            return
        stage = self._text
        piece = text[start:end] if end - start < len(text) else text
        if self._newlines:
            piece = "\n" * self._newlines + piece
            self._newlines = 0
        self._leading = False
        if not stage.blank:
            self._out.append(Span(stage.label, piece, size))
        elif self._blank_written:
            self._out.append(Span(Label.SKIP, "", size))
        else:
            self._blank_written = True
            self._out.append(Span(Label.FIXED, " ", size))

    def _read_text(self, text: str, start: int) -> int:
        stage = self._text
        if self._leading and text[start] == "\n" and stage.drops_leading:
            end = len(text) - len(text[start:].lstrip("\n"))
            self._out.append(Span(Label.SKIP, "", end - start))
            return end
        found = stage.literals.find(text, start)
        if found is None:
            return self._hold_back(text, start)
        return self._take(stage, text, start, found)

    def _take(self, stage: _TextStage, text: str, start: int, found: tuple[int, int, int]) -> int:
        """Write the text up to a literal and act on it; returns where it ends."""
        index, at, end = found
        kind = stage.kinds[index]
        before = at
        if kind in stage.swallows:
            before = start + len(text[start:at].rstrip("\n"))
        swallowed = at - before
        if before > start or kind not in stage.swallows:
            self._write(text, start, before)
        else:
            swallowed += self._newlines
            self._newlines = 0
        self._leading = False
        self._act(kind, text[at:end], swallowed)
        return end

    def _hold_back(self, text: str, start: int) -> int:
        """Write what can no longer belong to a literal; returns where the rest starts."""
        stage = self._text
        plain = stage.plain.partial(text, start)
        mark = stage.marks.partial(text, start)
        run = mark
        if stage.swallows:
            run = start + len(text[start:mark].rstrip("\n"))
        keep = min(plain, mark)
        end = min(plain, run)
        if end > start or (keep == start and run > start):
            self._write(text, start, end)
        self._newlines += keep - end
        return keep

    def _act(self, kind: _Found, literal: str, swallowed: int) -> None:
        size = swallowed + len(literal)
        if kind is _Found.STOP:
            self._out.append(Span(Label.STOP, literal, size))
            self._read = self._read_nothing
        elif kind is _Found.MARKER:
            self._out.append(Span(Label.SKIP, "", 0))  # what came before is text for certain
            self._block.open("\n" * swallowed + literal)
            self._read = self._read_block
        elif kind is _Found.BRACKET:
            self._out.append(Span(Label.FIXED, literal, size))
            self._text = self._stages.json
        else:
            self._out.append(Span(Label.SKIP, "", size))
            if kind is _Found.FENCE:
                self._text = self._stages.json
            elif kind is _Found.JSON_END:
                self._text = self._stages.after_json
                self._blank_written = False
            elif self._text.label is Label.REASONING:
                self._text = self._answer()
                self._leading = True

    def _read_nothing(self, text: str, start: int) -> int:
        """Text after the end is dropped, as recipe.md 3.2 has it."""
        self._out.append(Span(Label.SKIP, "", len(text) - start))
        return len(text)

    def _read_block(self, text: str, start: int) -> int:
        start = self._block.read(text, start, self._out)
        if self._block.outcome is Outcome.CLOSED:
            self._read = self._read_nothing
            if self._block.resumes:
                self._read = self._read_text
                self._text, self._leading = self._stages.content, True
        elif self._block.outcome is not Outcome.OPEN:
            self._release()
        return start

    def _release(self) -> None:
        """Read what was no block of calls once more, as text."""
        self._read = self._read_text
        self._stages = self._unmarked
        self._text = self._counterpart(self._marked, self._unmarked)
        self._run(self._block.raw())
        self._prose, self._held = self._held, ""
        self._stages = self._marked
        self._text = self._counterpart(self._unmarked, self._marked)
        if self._prose:
            self._read = self._read_prose

    def _read_prose(self, text: str, start: int) -> int:
        """A literal may begin in what was no block and end behind it; no mark begins in it."""
        stage = self._counterpart(self._marked, self._unmarked)
        size = len(self._prose)
        window = self._prose + text[start : start + stage.literals.longest]
        found = stage.literals.find(window, 0)
        if found is not None and found[1] < size:
            self._prose, self._read = "", self._read_text
            return start + self._take(stage, window, 0, found) - size
        if found is not None or stage.literals.partial(window, 0) >= size:
            self._let_go()
        return start

    def _let_go(self) -> None:
        if self._prose:
            prose, self._prose, self._read = self._prose, "", self._read_text
            self._write(prose, 0, len(prose))

    def _counterpart(self, old: _Stages, new: _Stages) -> _TextStage:
        (name,) = (name for name, stage in vars(old).items() if stage is self._text)
        stage: _TextStage = getattr(new, name)
        return stage
