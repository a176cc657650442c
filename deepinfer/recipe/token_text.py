"""Token ids of one answer to text, piece by piece.

It does not know what the text means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from deepinfer.recipe.events.logprobs import TokenLedger, entry_json
from deepinfer.recipe.inference import TokenLogprobs
from deepinfer.recipe.parse.marks import DSML, THINKING_END, Marks
from deepinfer.recipe.special_tokens import SpecialToken, SpecialTokens

_LONGEST_CHARACTER = 4  # bytes of UTF-8


class TokenSpellings(Protocol):
    """The part of a tokenizer that decoding needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens written out in it become their ids."""
        ...


class TokenText:
    """Decodes ids. A token that ends within a character waits, as a whole, for the next.

    Bytes that belong to no character become U+FFFD; an incomplete character at the end of the
    answer is dropped.

    Args:
        tokenizer: whose ids they are.
        tokens: spellings of the special tokens.
        ledger: is told which token became which text.
    """

    def __init__(
        self, tokenizer: TokenSpellings, tokens: SpecialTokens, ledger: TokenLedger
    ) -> None:
        self._tokenizer = tokenizer
        self._ledger = ledger
        self._known: dict[int, bytes] = {}
        self._waiting: list[bytes] = []
        self._entries: list[str | None] = []
        marked = ((SpecialToken.ThinkingEnd, THINKING_END), (SpecialToken.Dsml, DSML))
        ids = [tokenizer.encode(tokens.token(token)) for token, _ in marked]
        special = all(len(each) == 1 for each in ids)
        # A tokenizer that does not have both as tokens leaves only their spellings to look for.
        self._marks = {ids[i][0]: marked[i][1] for i in range(len(ids))} if special else {}
        self.marks = Marks.tokenised(tokens) if special else Marks.spelt(tokens)

    def spell_marks(self) -> None:
        """Let special tokens be their spellings; for output that began as text."""
        self._marks = {}

    def read(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> str:
        """The text that is certain now."""
        if logprobs is None:
            return "".join([self._add(token, None) for token in ids])
        spell: Callable[[int], bytes] = self._spelling
        entries = [
            entry_json(spell(token), each, spell) for token, each in zip(ids, logprobs, strict=True)
        ]
        return "".join(map(self._add, ids, entries))

    def _spelling(self, token: int) -> bytes:
        spelling = self._known.get(token)
        if spelling is None:
            spelling = self._known[token] = self._tokenizer.token_bytes(token)
        return spelling

    def _add(self, token: int, entry: str | None) -> str:
        mark = self._marks.get(token)
        if mark is not None:
            before = b"".join(self._waiting).decode(errors="replace")
            if self._waiting:
                self._hand_out(before)
            self._ledger.add_tokens([b"?"], mark, [entry])
            return before + mark
        self._waiting.append(self._spelling(token))
        self._entries.append(entry)
        source = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        try:
            text = source.decode()
        except UnicodeDecodeError:
            if _ends_within_character(source):
                return ""
            text = source.decode(errors="replace")
        self._hand_out(text)
        return text

    def _hand_out(self, text: str) -> None:
        self._ledger.add_tokens(self._waiting, text, self._entries)
        self._waiting, self._entries = [], []


def _ends_within_character(source: bytes) -> bool:
    for size in range(1, min(_LONGEST_CHARACTER, len(source) + 1)):
        tail = source[-size:]
        if tail[0] < 0x80:
            return False
        if tail[0] >= 0xC0:
            try:
                tail.decode()
            except UnicodeDecodeError as error:
                return error.reason == "unexpected end of data"
            return False
    return False
