"""A prompt while it is written: text, places of special tokens, images.

It does not know in which order a prompt is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from deepinfer.recipe.conversation import (
    ImageSource,
    Message,
    RenderedPrompt,
    SpecialToken,
    SpecialTokens,
)

_GROUNDING = (
    SpecialToken.Ref,
    SpecialToken.RefEnd,
    SpecialToken.Box,
    SpecialToken.BoxEnd,
    SpecialToken.Point,
    SpecialToken.PointEnd,
    SpecialToken.Polygon,
    SpecialToken.PolygonEnd,
)


class PromptWriter:
    """Collects the pieces of one prompt.

    Args:
        tokens: how special tokens are spelled. One spelled as nothing leaves no range.
    """

    def __init__(self, tokens: SpecialTokens) -> None:
        self._spelling = {token: tokens.token(token) for token in SpecialToken}
        self._grounding = _any_of([self._spelling[token] for token in _GROUNDING])
        self._pieces: list[str] = []
        self._ranges: list[tuple[int, int]] = []
        self._images: list[ImageSource] = []
        self._length = 0

    def special(self, token: SpecialToken) -> None:
        """Write a special token."""
        self.spelled(self._spelling[token])

    def spelled(self, spelling: str) -> None:
        """Write a special token that `SpecialToken` does not list; an empty one is nothing."""
        if spelling:
            start = self._length
            self.plain(spelling)
            self._ranges.append((start, self._length))

    def plain(self, text: str) -> None:
        """Write text, in which no special token is recognised."""
        self._pieces.append(text)
        self._length += len(text)

    def tag(self, text: str, *, closing: bool = False) -> None:
        """Write a DSML tag with its brackets; `text` stands between the marker and `>`."""
        self.plain("</" if closing else "<")
        self.special(SpecialToken.Dsml)
        self.plain(text + ">")

    def template(self, pieces: Sequence[str | SpecialToken]) -> None:
        """Write text and special tokens in a row."""
        for piece in pieces:
            if isinstance(piece, str):
                self.plain(piece)
            else:
                self.special(piece)

    def said(self, text: str) -> None:
        """Write what the model said earlier: the tokens with which it points at images count."""
        end = 0
        for match in self._grounding.finditer(text):
            self.plain(text[end : match.start()])
            self.spelled(match[0])
            end = match.end()
        self.plain(text[end:] if end else text)

    def content(self, message: Message) -> None:
        """Write what a message says: its images are special tokens, as the message spells them."""
        text, end = message.content, 0
        for start, stop in message.placeholders:
            self.plain(text[end:start])
            self.spelled(text[start:stop])
            end = stop
        self.plain(text[end:] if end else text)
        self._images += message.image_sources

    def finish(self) -> RenderedPrompt:
        """The prompt so far."""
        return RenderedPrompt("".join(self._pieces), list(self._ranges), list(self._images))


def _any_of(spellings: Sequence[str]) -> re.Pattern[str]:
    # The shortest first: where one begins another, the one that is complete first counts.
    shortest_first = sorted(filter(None, spellings), key=len)
    return re.compile("|".join(map(re.escape, shortest_first)) or r"(?!)")
