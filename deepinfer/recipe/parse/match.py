"""Search for literals in text that arrives in pieces.

It does not know what the literals mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class Literals:
    """A few literals searched together.

    Args:
        literals: those at a lower index win when two end at the same place; empty ones are
            never found.
    """

    __slots__ = ("_by_first", "_indexed", "_pattern", "_several", "longest")

    def __init__(self, literals: Sequence[str]) -> None:
        self._indexed = tuple((i, literal) for i, literal in enumerate(literals) if literal)
        self.longest = max((len(literal) for _, literal in self._indexed), default=1)
        self._several = len(self._indexed) > 1
        found = "|".join(re.escape(literal) for _, literal in self._indexed)
        self._pattern = re.compile(found or r"(?!)")
        by_first: dict[str, list[str]] = {}
        for _, literal in self._indexed:
            by_first.setdefault(literal[0], []).append(literal)
        self._by_first = tuple((first, tuple(group)) for first, group in by_first.items())

    def find(self, text: str, start: int) -> tuple[int, int, int] | None:
        """The occurrence that ends first.

        Returns:
            (index of the literal, start, end) or None. Linear in the distance to it.
        """
        match = self._pattern.search(text, start)
        if match is None:
            return None
        first, end = match.span()
        if not self._several:
            return self._indexed[0][0], first, end
        # Whatever ends sooner than the literal that starts first lies inside of it.
        best = (end + 1, 0, 0)
        for index, literal in self._indexed:
            at = text.find(literal, first, end)
            if at != -1 and at + len(literal) < best[0]:
                best = (at + len(literal), index, at)
        return best[1], best[2], best[0]

    def partial(self, text: str, start: int) -> int:
        """Where the longest unfinished literal at the end of `text` starts; its length if none."""
        size = keep = len(text)
        low = max(start, size - self.longest + 1)
        for first, group in self._by_first:
            at = text.find(first, low)
            while -1 < at < keep:
                tail = text[at:]
                if any(literal.startswith(tail) for literal in group):
                    keep = at
                    break
                at = text.find(first, at + 1)
        return keep
