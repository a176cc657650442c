"""A value that can be taken once.

It does not know what the value is.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Consumable(Generic[T]):
    """Holds a value until it is taken."""

    __slots__ = ("_held",)

    def __init__(self, value: T) -> None:
        self._held: tuple[T] | None = (value,)

    @property
    def value(self) -> T:
        """The value, which stays.

        Raises:
            RuntimeError: it was taken.
        """
        if self._held is None:
            raise RuntimeError("protocol request has been consumed")
        return self._held[0]

    def take(self) -> T:
        """The value, for the last time.

        Raises:
            RuntimeError: it was taken.
        """
        value = self.value
        self._held = None
        return value
