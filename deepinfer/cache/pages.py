"""Owns which pages are free, shared or kept for later. Knows nothing of requests and their rows.

A page with a key holds the entries of one page of tokens for good: whoever has the same key may own
it too, and it stays findable after its last owner left until its place is needed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
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
        self._owners = [0] * (num_pages + 1)
        self._keys: dict[int, bytes] = {}
        self._pages: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # keyed, without owner; oldest first

    @property
    def free(self) -> int:
        """Pages that can be taken: without owner, also if they still have a key."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Pages that somebody owns."""
        return self.num_pages - self.free

    @property
    def cached(self) -> int:
        """Pages that can be found by key."""
        return len(self._keys)

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages without key; the caller has checked that so many are free.

        Pages kept for later are given up last, the one unused for the longest time first.
        """
        assert 0 <= count <= self.free, f"{count} pages wanted, {self.free} free"
        fresh = min(count, len(self._free))
        pages = self._free[: -fresh - 1 : -1]
        del self._free[len(self._free) - fresh :]
        for _ in range(count - fresh):
            page, _none = self._idle.popitem(last=False)
            self._forget(page)
            pages.append(page)
        for page in pages:
            self._owners[page] = 1
        return pages

    def match(self, keys: Sequence[bytes], start: int = 0) -> list[int]:
        """The pages of the longest run of known keys from `keys[start]` on."""
        found: list[int] = []
        for place in range(start, len(keys)):
            page = self._pages.get(keys[place])
            if page is None:
                break
            found.append(page)
        return found

    def idle(self, pages: Iterable[int]) -> int:
        """How many of `pages` have no owner: those that `share` takes from the free ones."""
        return sum(not self._owners[page] for page in pages)

    def share(self, pages: Iterable[int]) -> None:
        """Add an owner to pages that `match` found."""
        for page in pages:
            if not self._owners[page]:
                del self._idle[page]
            self._owners[page] += 1

    def publish(self, page: int, key: bytes) -> None:
        """Make an owned page findable; of two pages with one key the first stays the one found."""
        assert self._owners[page], f"page {page} has no owner"
        assert page not in self._keys, f"page {page} is published already"
        if key not in self._pages:
            self._pages[key] = page
            self._keys[page] = key

    def give_back(self, pages: Sequence[int]) -> None:
        """Take pages back from one owner, who forgets them.

        Args:
            pages: in the order of their tokens: the last ones are given up first.
        """
        for page in reversed(pages):
            self._owners[page] -= 1
            if self._owners[page]:
                continue
            if page in self._keys:
                self._idle[page] = None
            else:
                self._free.append(page)

    def forget(self, pages: Iterable[int]) -> None:
        """Make owned pages not findable any more."""
        for page in pages:
            assert self._owners[page], f"page {page} has no owner"
            if page in self._keys:
                self._forget(page)

    def reset(self) -> None:
        """Forget all keys; pages keep their owners."""
        self._free.extend(reversed(self._idle))
        self._idle.clear()
        self._keys.clear()
        self._pages.clear()

    def _forget(self, page: int) -> None:
        del self._pages[self._keys.pop(page)]

    def check(self, owned: Iterable[int]) -> list[str]:
        """Broken invariants, one sentence each, given all pages of all owners.

        Every page 1..num_pages is free, idle or owned, owned pages by as many as counted, and
        there are no others.
        """
        owners = Counter(owned)
        problems = [
            f"page {page} has {count} owners, {self._count(page)} are counted"
            for page, count in sorted(owners.items())
            if count != self._count(page)
        ]
        places = Counter([*self._free, *self._idle, *owners])
        problems += [
            f"page {page} is free, idle or owned {count} times"
            for page, count in sorted(places.items())
            if count != 1 or not 1 <= page <= self.num_pages
        ]
        if lost := self.num_pages - len(places):
            problems.append(f"{lost} pages are neither free nor idle nor owned")
        if any(self._pages.get(key) != page for page, key in self._keys.items()) or len(
            self._pages
        ) != len(self._keys):
            problems.append("keys and pages disagree")
        problems += [
            f"idle page {page} has no key" for page in self._idle if page not in self._keys
        ]
        return problems

    def _count(self, page: int) -> int:
        return self._owners[page] if 0 <= page <= self.num_pages else 0
