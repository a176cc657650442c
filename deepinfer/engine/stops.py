"""Stop strings: where a growing text ends, and how much of it may be shown before that is clear.

It owns the search. It does not know about tokens.
"""

from __future__ import annotations

from typing import NamedTuple


class Emitted(NamedTuple):
    """Text that may be shown now, and the stop string that ended it, None while it goes on."""

    text: str
    stop: str | None


class StopStrings:
    """Finds the first stop string in a text that comes in pieces.

    The stop string that is complete first ends the text; of those completed by the same character
    the longest does, since it begins leftmost. So the place depends on the text alone and never
    on how it was cut into pieces, and nothing needs to be generated to know it. (A stop string
    that holds another one before its own end can never be complete first.)

    Time is linear in the text for each stop string, whatever their lengths.

    Args:
        stops: non-empty strings; none lets every text through.
        include: keep the stop string itself in the text.
    """

    def __init__(self, stops: tuple[str, ...], include: bool):
        assert all(stops), "SamplingParams refuses empty stop strings"
        self._searches = [_Search(stop) for stop in stops]
        self._include = include
        self._stop: str | None = None
        # What is held back is always the beginning of some stop string: `_held_in[:_held]`.
        self._held_in = ""
        self._held = 0

    def push(self, text: str) -> Emitted:
        """Take the next piece; release all that cannot become part of a stop string any more.

        After a stop everything is dropped.
        """
        if self._stop is not None:
            return Emitted("", self._stop)
        ends = [(search, search.feed(text)) for search in self._searches]
        found = [(end, -len(search.stop), search.stop) for search, end in ends if end is not None]
        if found:
            end, _, self._stop = min(found)
            shown = self._held + end - (0 if self._include else len(self._stop))
            return Emitted(self._first(shown, text), self._stop)
        longest = max(self._searches, key=lambda search: search.matched, default=None)
        held = 0 if longest is None else longest.matched
        released = self._first(self._held + len(text) - held, text)
        self._held_in, self._held = "" if longest is None else longest.stop, held
        return Emitted(released, None)

    def finish(self) -> str:
        """What is still held back, which is text after all; nothing after a stop."""
        return "" if self._stop is not None else self._held_in[: self._held]

    def _first(self, count: int, text: str) -> str:
        """The first `count` characters of what is held and `text`."""
        if count <= self._held:  # without joining: a long beginning may be held for many pieces
            return self._held_in[:count]
        return self._held_in[: self._held] + text[: count - self._held]


class _Search:
    """Knuth-Morris-Pratt search for one string."""

    def __init__(self, stop: str):
        self.stop = stop
        self.matched = 0  # length of the longest beginning of `stop` that the text now ends with
        # [k] = length of the longest shorter beginning of stop[:k] that is also its end. It grows
        # only as far as the text has ever matched: a long stop string costs nothing in advance.
        self._border = [0, 0]

    def feed(self, text: str) -> int | None:
        """Go on by `text`; the place after the first match's last character, None if no match."""
        stop, border, matched = self.stop, self._border, self.matched
        at = 0
        while at < len(text):
            if not matched:
                at = text.find(stop[0], at)
                if at < 0:
                    break
            matched = self._longer(matched, text[at])
            at += 1
            if matched == len(stop):
                return at
            if matched == len(border):
                border.append(self._longer(border[-1], stop[matched - 1]))
        self.matched = matched
        return None

    def _longer(self, matched: int, char: str) -> int:
        """Length of the longest beginning of `stop` at the end of `stop[:matched] + char`."""
        while matched and self.stop[matched] != char:
            matched = self._border[matched]
        return matched + (self.stop[matched] == char)
