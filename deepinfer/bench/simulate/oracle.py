"""How much of each prompt a cache that forgets nothing would have. Knows nothing of replay."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.cache import extend_chain


class Oracle:
    """An infinite cache of pages: what came before, whether it is computed yet or not.

    Args:
        page_tokens: tokens a page.
    """

    def __init__(self, page_tokens: int):
        self._page = page_tokens
        self._known: set[bytes] = set()

    def arrived(self, prompt: Sequence[int]) -> int:
        """Leading tokens of a prompt in known pages, at most all but one; learns its pages."""
        keys = self._keys(prompt)
        usable = (len(prompt) - 1) // self._page
        found = next((i for i, key in enumerate(keys) if key not in self._known), len(keys))
        self._known.update(keys)
        return min(found, usable) * self._page

    def answered(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Learn the pages of an answer; its last token was never computed."""
        self._known.update(self._keys([*prompt, *output[:-1]]))

    def _keys(self, ids: Sequence[int]) -> list[bytes]:
        keys: list[bytes] = []
        extend_chain(keys, b"", ids, self._page, len(ids))
        return keys
