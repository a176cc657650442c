"""Token ids to text, a few at a time, without ever showing half a character.

It owns the bytes behind each token and the decoding of what a request generates. It does not know
why a request ends.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers import decoders

from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import CheckpointError

_REPLACEMENT = "\ufffd"
_LONGEST_CUT = 3  # bytes of a UTF-8 character that still lacks some


class TokenBytes:
    """The bytes each token stands for; made once for a tokenizer and shared by all requests.

    Attributes:
        table: bytes by token id, for the ids that the tokenizer names; empty for a hole.
        special: ids of the tokens marked special in `tokenizer.json`.

    Raises:
        CheckpointError: the tokenizer is not byte-level; its tokens do not stand for bytes.
    """

    def __init__(self, tokenizer: TextTokenizer):
        library = tokenizer.library
        if not isinstance(library.decoder, decoders.ByteLevel):
            problem = f"its decoder is {library.decoder}; this model family has byte-level tokens"
            raise CheckpointError("tokenizer.json", [f"{problem}, take its own file"])
        self._tokenizer = tokenizer
        alphabet = _byte_alphabet()
        names = map(library.id_to_token, range(tokenizer.vocab_size))
        self.table = tuple(_bytes_of(name or "", alphabet) for name in names)
        added = library.get_added_tokens_decoder()
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)

    def join(self, ids: Sequence[int], skip_special_tokens: bool) -> bytes:
        """Bytes of `ids` in a row; special tokens have none if they are skipped.

        Raises:
            ValueError: an id is outside the model's vocabulary.
        """
        if skip_special_tokens:
            ids = [token_id for token_id in ids if token_id not in self.special]
        return b"".join([self._of(token_id) for token_id in ids])

    def _of(self, token_id: int) -> bytes:
        if 0 <= token_id < len(self.table):
            return self.table[token_id]
        # The model has more embeddings than named tokens; only the tokenizer knows how many.
        return self._tokenizer.decode([token_id]).encode()


class Detokenizer:
    """The text of one completion as it grows.

    All pushes and `finish` together give what `TextTokenizer.decode` gives for all ids at once.
    After a prompt that ends inside a character they give what the ids add to the prompt's text:
    the whole character if they complete it, else no second U+FFFD for it.

    Args:
        tokens: bytes of the tokenizer's tokens.
        skip_special_tokens: leave out tokens marked special.
        prompt_ids: what the completion follows; only its last characters matter.
    """

    def __init__(
        self,
        tokens: TokenBytes,
        *,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
    ):
        self._tokens = tokens
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(self._last_bytes(prompt_ids))
        self._prompt_is_cut = bool(self._decoder.getstate()[0])

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain now and was not before; bytes of a begun character wait.

        Raises:
            ValueError: an id is outside the model's vocabulary.
        """
        return self._new(self._decoder.decode(self._tokens.join(ids, self._skip)))

    def finish(self) -> str:
        """What still waits: U+FFFD for a character that stays incomplete. Comes last."""
        return self._new(self._decoder.decode(b"", final=True))

    def _new(self, text: str) -> str:
        if text and self._prompt_is_cut:
            self._prompt_is_cut = False
            return text.removeprefix(_REPLACEMENT)
        return text

    def _last_bytes(self, prompt_ids: Sequence[int]) -> bytes:
        # UTF-8 is self-synchronising: where decoding starts does not matter to a cut character.
        last = b""
        for token_id in reversed(prompt_ids):
            last = self._tokens.join([token_id], self._skip) + last
            if len(last) >= _LONGEST_CUT:
                break
        return last


def _bytes_of(name: str, alphabet: dict[str, int]) -> bytes:
    # A name with any other character, as `<｜User｜>`, stands for itself.
    if all(char in alphabet for char in name):
        return bytes([alphabet[char] for char in name])
    return name.encode()


def _byte_alphabet() -> dict[str, int]:
    # How byte-level BPE writes bytes: printable Latin-1 characters stand for themselves, the
    # other bytes have, in order, the characters from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(printable))
    characters = [*printable, *range(0x100, 0x100 + len(others))]
    return dict(zip(map(chr, characters), [*printable, *others], strict=True))
