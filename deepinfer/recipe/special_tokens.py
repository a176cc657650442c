"""The special tokens that prompts and answers are marked up with, and their spellings.

It does not know token ids: a tokenizer has them.
"""

from __future__ import annotations

from enum import Enum
from typing import TypedDict, Unpack


class SpecialToken(Enum):
    """A kind of special token; the value is its default spelling (recipe.md 2.1)."""

    Bos = "<｜begin▁of▁sentence｜>"
    Eos = "<｜end▁of▁sentence｜>"
    ThinkingStart = "<think>"
    ThinkingEnd = "</think>"
    System = "<｜System｜>"
    User = "<｜User｜>"
    Assistant = "<｜Assistant｜>"
    LatestReminder = "<｜latest_reminder｜>"
    Dsml = "｜DSML｜"
    Image = "<｜image｜>"
    Ref = "<｜ref｜>"
    RefEnd = "<｜/ref｜>"
    Box = "<｜box｜>"
    BoxEnd = "<｜/box｜>"
    Point = "<｜point｜>"
    PointEnd = "<｜/point｜>"
    Polygon = "<｜polygon｜>"
    PolygonEnd = "<｜/polygon｜>"

    def default_str(self) -> str:
        """The default spelling."""
        return self.value


class _Spellings(TypedDict, total=False):
    bos: str | None
    eos: str | None
    thinking_start: str | None
    thinking_end: str | None
    system: str | None
    user: str | None
    assistant: str | None
    latest_reminder: str | None
    dsml: str | None
    image: str | None
    ref: str | None
    ref_end: str | None
    box: str | None
    box_end: str | None
    point: str | None
    point_end: str | None
    polygon: str | None
    polygon_end: str | None


# The keywords stand in the order of the members.
_TOKENS = dict(zip(_Spellings.__annotations__, SpecialToken, strict=True))


class SpecialTokens:
    """The spelling of every special token; those not given keep their default.

    Args:
        spellings: by keyword, such as `bos` or `thinking_end`; None means the default.

    Raises:
        TypeError: a keyword names no token, or a spelling is no text.
    """

    __slots__ = ("_spellings",)

    def __init__(self, **spellings: Unpack[_Spellings]) -> None:
        self._spellings = {token: token.value for token in SpecialToken}
        for name, spelling in spellings.items():
            if name not in _TOKENS:
                raise TypeError(f"no special token is called {name!r}; there are {list(_TOKENS)}")
            if isinstance(spelling, str):
                self._spellings[_TOKENS[name]] = spelling
            elif spelling is not None:
                raise TypeError(f"{name} must be text, not {type(spelling).__name__}")

    def token(self, token: SpecialToken) -> str:
        """The spelling of `token`."""
        return self._spellings[token]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecialTokens) and self._spellings == other._spellings

    def __hash__(self) -> int:
        return hash(tuple(self._spellings.values()))

    def __repr__(self) -> str:
        changed = [
            f"{name}={self._spellings[token]!r}"
            for name, token in _TOKENS.items()
            if self._spellings[token] != token.value
        ]
        return f"SpecialTokens({', '.join(changed)})"
