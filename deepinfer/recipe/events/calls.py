"""Ids of tool calls.

It does not know what is called.
"""

from __future__ import annotations

import random
import string

_LETTERS = string.ascii_letters + string.digits
_NUM_LETTERS, _NUM_DIGITS = 20, 4


class CallIds:
    """Makes the ids of one answer (recipe.md 3.8).

    Args:
        source: of randomness; the system's when None.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = random.SystemRandom() if source is None else source
        self._count = 0

    @property
    def count(self) -> int:
        """Ids made so far."""
        return self._count

    def next(self, empty_thinking: bool) -> str:
        """The id of the next call.

        Args:
            empty_thinking: the answer is in thinking mode and no reasoning came before the
                call; such an id says that no reasoning has to be passed back.
        """
        letters = "".join(self._source.choices(_LETTERS, k=_NUM_LETTERS))
        digits = "".join(self._source.choices(string.digits, k=_NUM_DIGITS))
        marker = "ET_" if empty_thinking else ""
        made = f"call_{self._count:02d}_{marker}{letters}{digits}"
        self._count += 1
        return made
