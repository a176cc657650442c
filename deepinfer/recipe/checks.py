"""Checks of what callers hand to constructors: types, choices, valid text.

It does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def check_text(name: str, value: object) -> None:
    """Accept text that UTF-8 can write.

    Raises:
        TypeError: no text.
        UnicodeEncodeError: it holds half of a surrogate pair (a ValueError).
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {type(value).__name__}")
    if not value.isascii():
        value.encode()


def check_optional_text(name: str, value: object) -> None:
    """The same, or None."""
    if value is not None:
        check_text(name, value)


def check_flag(name: str, value: object) -> None:
    """Accept True and False.

    Raises:
        TypeError: anything else, 0 and 1 included.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Accept one of at least two texts.

    Raises:
        TypeError: no text.
        ValueError: another text.
    """
    if value in choices:
        return
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {type(value).__name__}")
    *most, last = [f'"{choice}"' for choice in choices]
    expected = f"{most[0]} or {last}" if len(most) == 1 else f"{', '.join(most)}, or {last}"
    raise ValueError(f'invalid {name} "{value}"; expected {expected}')


def check_kind(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Accept an instance.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(item.__name__ for item in kinds)
        raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def checked_items(name: str, value: Sequence[T] | None, kind: type[T]) -> list[T]:
    """A new list of the items; empty for None.

    Raises:
        TypeError: no sequence, or an item of another kind.
    """
    if value is None:
        return []
    check_kind(name, value, Sequence)
    items = list(value)
    for item in items:
        check_kind(f"an item of {name}", item, kind)
    return items
