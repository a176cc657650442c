"""Owns which pages are free. Knows nothing of requests: the owner keeps the list it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Tokens = TypeVar("Tokens", int, NDArray[np.int64])


def pages_for(tokens: Tokens, page_tokens: int) -> Tokens:
    """Pages of `page_tokens` tokens that cover `tokens` positions; also of arrays."""
    return -(-tokens // page_tokens)


class PagePool:
    """Pages 1..num_pages; page 0 is reserved for padding and never handed out.

    Args:
        num_pages: pages that can be handed out, >= 1.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        # The page freed last is handed out first: its bytes are the likeliest to be in a cache.
        self._free = list(range(num_pages, 0, -1))

    @property
    def free(self) -> int:
        """Pages that are free."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages that somebody owns."""
        return self.num_pages - len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages; the caller has checked that so many are free."""
        assert 0 <= count <= len(self._free), f"{count} pages wanted, {len(self._free)} free"
        if count == 0:
            return []
        pages = self._free[: -count - 1 : -1]
        del self._free[-count:]
        return pages

    def give_back(self, pages: Iterable[int]) -> None:
        """Take pages back from their owner, who forgets them."""
        self._free.extend(reversed(list(pages)))

    def check(self, owned: Iterable[int]) -> list[str]:
        """Broken invariants, one sentence each, given all pages of all owners.

        Every page 1..num_pages is either free once or owned once, and there are no others.
        """
        counts = Counter(self._free)
        counts.update(owned)
        problems = [
            f"page {page} is free or owned {count} times"
            for page, count in sorted(counts.items())
            if count != 1 or not 1 <= page <= self.num_pages
        ]
        lost = self.num_pages - len(counts)
        return [*problems, f"{lost} pages are neither free nor owned"] if lost else problems
