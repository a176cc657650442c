"""The tokens a matcher may choose from: their bytes, the end tokens, and which are control tokens.

It owns the library's view of a tokenizer and does not know any grammar.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper

from deepinfer.grammar.mask_row import all_ones

# Tokens that match one of these and none before are one slice. Where the grammar takes every text
# of a slice, its tokens become legal together and need no walk through their bytes. JSON strings
# and words are where most tokens are legal; those with a maximum length need the short ones.
_PLAIN = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[ \n\r\t]+",
    "[a-z]{1,10}",
    "[a-zA-Z0-9]{1,10}",
    *(f"{_PLAIN}{{1,{most}}}" for most in (2, 4, 6, 8, 10, 13, 16, 30)),
    f"{_PLAIN}+",
]
_LONGEST = 1_000  # bytes of a token; somewhat above, the library does not raise but panics


def _byte_letters() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte, backwards.

    Printable characters of Latin-1 stand for themselves, the other bytes for what follows Latin-1.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


def _bytes_of_tokens(
    vocab: Mapping[str, int], control: Mapping[str, int], size: int
) -> list[bytes]:
    letters = _byte_letters()
    tokens = [b""] * size
    names = set(control)
    for token, id in [*vocab.items(), *control.items()]:
        if not 0 <= id < size:
            raise ValueError(f"token {token!r} has the id {id}, which is not in [0, {size})")
        try:
            tokens[id] = token.encode() if token in names else bytes(letters[c] for c in token)
        except KeyError:
            raise ValueError(f"token {token!r} (id {id}) is not made of bytes") from None
        if len(tokens[id]) > _LONGEST:
            raise ValueError(f"token {id} has {len(tokens[id])} bytes; at most {_LONGEST} work")
    return tokens


class _Tokens:
    """A vocabulary in the shape that the library reads."""

    def __init__(self, vocabulary: Vocabulary):
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        self.tokens = [vocabulary.token_bytes(id) for id in range(vocabulary.size)]
        free = [id for id, token in enumerate(self.tokens) if not token]
        for id in free:
            self.tokens[id] = f"<[{id}]>".encode()  # as a name; the library wants one for each
        self.special_token_ids = [*vocabulary.control, *free]

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a text: nothing the library is used for needs them."""
        del text
        return []


class Vocabulary:
    """One tokenizer, prepared for masks.

    Added tokens (`</think>`, `<｜User｜>`, the DSML mark, end tokens) are control tokens: no
    grammar takes them for the text that spells them, so a constrained text never contains one
    unless its grammar names the token itself.

    Attributes:
        size: ids of the model (config key `vocab_size`); masks have a bit for each.
        words: 32-bit words of a mask row.
        end_ids: ids that end a text.
        control_ids: spelling -> id of every added token.
        control: those ids.
        library: what the matching library makes of it.
        all_ones: a mask row that allows every id of the model and no bit beyond; int32 [words],
            read-only.
        digest: SHA-256 that equal vocabularies share, in hexadecimal.
    """

    def __init__(self, tokenizer_json: str, size: int, end_ids: Sequence[int]):
        """Read a tokenizer; about a second for one of 129,280 tokens.

        Args:
            tokenizer_json: content of a `tokenizer.json` with byte-level tokens.
            size: ids of the model, at least those the file names.
            end_ids: at least one id in [0, size).

        Raises:
            ValueError: the file is no tokenizer, or the ids do not fit.
        """
        if not end_ids or not all(0 <= id < size for id in end_ids):
            raise ValueError(f"end_ids {list(end_ids)}: give ids in [0, {size})")
        self.size = size
        self.end_ids = tuple(dict.fromkeys(end_ids))
        self.tokenizer_json = tokenizer_json
        description: dict[str, Any] = json.loads(tokenizer_json)
        added: list[dict[str, Any]] = description.get("added_tokens") or []
        self.control_ids: dict[str, int] = {token["content"]: token["id"] for token in added}
        self.control = frozenset(self.control_ids.values())
        self._bytes = _bytes_of_tokens(description["model"]["vocab"], self.control_ids, size)
        self.library = LLTokenizer(
            TokenizerWrapper(_Tokens(self)),
            n_vocab=size,
            eos_token=list(self.end_ids),
            slices=_SLICES,
        )
        self.all_ones = all_ones(size)
        self.words = len(self.all_ones)
        self._starting_with: dict[bytes, tuple[int, ...]] = {}
        parts = (hashlib.sha256(tokenizer_json.encode()).hexdigest(), size, self.end_ids)
        self.digest = hashlib.sha256(repr(parts).encode()).hexdigest()

    def token_bytes(self, id: int) -> bytes:
        """Bytes of one token; those of its spelling for a control token, none for a free id."""
        return self._bytes[id]

    def starting_with(self, beginning: bytes) -> tuple[int, ...]:
        """Ids of the tokens of text that start with `beginning`."""
        if beginning not in self._starting_with:
            self._starting_with[beginning] = tuple(
                id
                for id, token in enumerate(self._bytes)
                if token.startswith(beginning) and id not in self.control
            )
        return self._starting_with[beginning]
