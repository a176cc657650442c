"""Log-probabilities: which tokens belong to which piece of text, and their JSON.

It does not know what the pieces are for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from deepinfer.recipe.events.wire import quote, single
from deepinfer.recipe.inference import TokenLogprobs
from deepinfer.recipe.parse.spans import Label

_SHOWN = (Label.REASONING, Label.CONTENT)


def _logprob(value: float) -> str:
    return single(value) if math.isfinite(value) else "null"


def _fields(spelling: bytes, logprob: float) -> str:
    try:
        text = spelling.decode()
    except UnicodeDecodeError:
        text = "".join(f"\\x{byte:02x}" for byte in spelling)
    listed = ",".join(map(str, spelling))
    return f'"token":{quote(text)},"logprob":{_logprob(logprob)},"bytes":[{listed}]'


def entry_json(spelling: bytes, logprobs: TokenLogprobs, bytes_of: Callable[[int], bytes]) -> str:
    """One token with its rivals.

    Args:
        spelling: the bytes of the token; a token that is no UTF-8 shows as `\\xNN` escapes.
        logprobs: of the token and of its rivals, in single precision.
        bytes_of: the bytes of a rival.
    """
    rivals = ",".join(f"{{{_fields(bytes_of(token), value)}}}" for token, value in logprobs[1])
    return f'{{{_fields(spelling, logprobs[0])},"top_logprobs":[{rivals}]}}'


class TokenLedger:
    """Assigns tokens to spans of the parsed output.

    A token belongs to the first span with text for the client in which a part of it shows;
    tokens that are markup throughout belong to none.
    """

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int, str | None]] = deque()
        self._fed = 0
        self._read = 0
        self.reasoning_tokens = 0

    def add_text(self, size: int) -> None:
        """Output without token ids, `size` code points long."""
        self._fed += size

    def add_tokens(self, spellings: list[bytes], text: str, entries: list[str | None]) -> None:
        """Tokens that make up `text` together."""
        if len(spellings) == 1:
            self._tokens.append((self._fed, self._fed + len(text), entries[0]))
        else:
            self._add_parts(spellings, text, entries)
        self._fed += len(text)

    def _add_parts(self, spellings: list[bytes], text: str, entries: list[str | None]) -> None:
        # Where each code point ends, in bytes; a token covers all that it has a byte of.
        source = b"".join(spellings)
        offset = 0
        for spelling, entry in zip(spellings, entries, strict=True):
            end = offset + len(spelling)
            first = len(source[: offset + 1].decode(errors="replace")) - 1 if spelling else 0
            last = len(source[:end].decode(errors="replace"))
            first, last = min(first, len(text)), min(last, len(text))
            self._tokens.append((self._fed + first, self._fed + last, entry))
            offset = end

    def take(self, label: Label, size: int) -> list[str] | None:
        """The entries of the tokens that belong to the next span; None if there are none."""
        end = self._read + size
        tokens = self._tokens
        entries: list[str] = []
        if label in _SHOWN:
            while tokens and tokens[0][0] < end:
                entry = tokens.popleft()[2]
                if entry is not None:
                    entries.append(entry)
                self.reasoning_tokens += label is Label.REASONING
        else:
            while tokens and tokens[0][1] <= end:
                tokens.popleft()
        self._read = end
        return entries or None
