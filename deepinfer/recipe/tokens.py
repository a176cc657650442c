"""Text to token ids, with the two tables that prompts need, and the bytes of an id.

It does not know which texts prompts are made of.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import decoders

from deepinfer.errors import DeepinferError
from deepinfer.recipe.checks import check_text
from deepinfer.recipe.conversation import RenderedPrompt
from deepinfer.recipe.special_tokens import SpecialToken

IMAGE_SPECIAL_TOKEN_ID = 129264  # of V4.1
# Two tokens that prompts of V4.1 spell in one way and tokenizer files may name in another: first
# the file of V4.1, then that of V4, where the same ids have other names (recipe.md 6, model.md 3).
_SYSTEM_NAMES = (SpecialToken.System.value, "<｜place▁holder▁no▁799｜>")
_IMAGE_NAMES = ("<｜deepseek_image｜>", "<｜image2｜>", SpecialToken.Image.value)


class TokenizerError(DeepinferError, RuntimeError):
    """A tokenizer cannot be read, or lacks a special token. Handled by the operator."""


class Tokenizer:
    """A tokenizer read from a `tokenizer.json`. Made by `from_file`, `from_str`, `from_pretrained`.

    Prompts need two tables: special tokens are looked up among the added tokens, and the text
    between them is encoded as if there were no added tokens, so that `<｜User｜>` typed by a user
    becomes ordinary tokens.
    """

    def __init__(self) -> None:
        raise TypeError("a Tokenizer is made by from_file, from_str or from_pretrained")

    @staticmethod
    def from_file(path: str) -> Tokenizer:
        """Read a `tokenizer.json`.

        Raises:
            TokenizerError: no such file, or no tokenizer in it.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"cannot read {path}: {error}") from error
        return Tokenizer.from_str(text)

    @staticmethod
    def from_str(text: str) -> Tokenizer:
        """The same, from the text of the file."""
        try:
            library = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower type
            raise TokenizerError(f"no tokenizer in this tokenizer.json: {error}") from error
        new = Tokenizer.__new__(Tokenizer)
        new._fill(library)
        return new

    @staticmethod
    def from_pretrained(
        identifier: str, revision: str | None = None, token: str | None = None
    ) -> Tokenizer:
        """Read the `tokenizer.json` of a checkpoint directory; nothing is downloaded.

        Args:
            identifier: the directory.
            revision: for hubs; must be None.
            token: the same.

        Raises:
            TokenizerError: no such directory or file.
            ValueError: a revision or token is given.
        """
        if revision is not None or token is not None:
            raise ValueError("nothing is downloaded; pass a directory without revision and token")
        if not Path(identifier).is_dir():
            raise TokenizerError(
                f"no directory {identifier}; download the checkpoint first and pass its directory"
            )
        return Tokenizer.from_file(str(Path(identifier) / "tokenizer.json"))

    def with_special_ids(self, ids: Mapping[str, int]) -> Tokenizer:
        """A new tokenizer whose prompts use other ids for some special tokens.

        Args:
            ids: id by spelling; what `encode` does stays as it is.
        """
        new = copy.copy(self)
        new._special = {**self._special, **ids}
        return new

    def for_v41(self) -> Tokenizer:
        """A new tokenizer whose prompts have the system and image tokens of V4.1.

        Works with the files of V4.1 and V4: the latter has the same ids under other names.
        """
        ids: dict[str, int] = {}
        for names, token in (
            (_SYSTEM_NAMES, SpecialToken.System),
            (_IMAGE_NAMES, SpecialToken.Image),
        ):
            known = [self._special[name] for name in names if name in self._special]
            if known:
                ids[token.value] = known[0]
        return self.with_special_ids(ids)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens written out in it become their ids.

        Raises:
            UnicodeEncodeError: the text holds half of a surrogate pair.
        """
        check_text("text", text)
        return self._whole.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Ids of a prompt: special tokens where its ranges are, none anywhere else.

        Raises:
            TokenizerError: a special token of the prompt is not among the added tokens.
        """
        return [token_id for ids in self.encode_pieces(prompt) for token_id in ids]

    def encode_pieces(self, prompt: RenderedPrompt) -> list[list[int]]:
        """The same, one list for each of `prompt.pieces()`."""
        pieces = prompt.pieces()
        # The same short stretches come again and again.
        distinct = list(dict.fromkeys(text for text, is_special in pieces if not is_special))
        encoded = self._plain.encode_batch_fast(distinct, add_special_tokens=False)
        plain = dict(zip(distinct, [encoding.ids for encoding in encoded], strict=True))
        return [
            [self._special_id(text)] if is_special else plain[text] for text, is_special in pieces
        ]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; a special token stands for its spelling.

        Ids that the tokenizer does not name have none.
        """
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._look_up(token_id)
        return data

    def _look_up(self, token_id: int) -> bytes:
        name = self._whole.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if name is None:
            return b""
        if all(char in self._alphabet for char in name):
            return bytes([self._alphabet[char] for char in name])
        return name.encode()  # an added token, such as `<｜User｜>`

    def _special_id(self, spelling: str) -> int:
        try:
            return self._special[spelling]
        except KeyError:
            raise TokenizerError(
                f'failed to encode conversation: special token "{spelling}" is not in the added '
                "vocabulary"
            ) from None

    def _fill(self, library: tokenizers.Tokenizer) -> None:
        if not isinstance(library.decoder, decoders.ByteLevel):
            raise TokenizerError(
                f"its decoder is {library.decoder}; this model family has byte-level tokens"
            )
        library.no_truncation()
        library.no_padding()
        self._whole = library
        # The same model without added tokens.
        self._plain = tokenizers.Tokenizer(library.model)
        if library.normalizer is not None:
            self._plain.normalizer = library.normalizer
        if library.pre_tokenizer is not None:
            self._plain.pre_tokenizer = library.pre_tokenizer
        added = library.get_added_tokens_decoder()
        self._special = {token.content: token_id for token_id, token in added.items()}
        self._alphabet = _byte_alphabet()
        self._bytes: dict[int, bytes] = {}  # filled as ids are asked for


def _byte_alphabet() -> dict[str, int]:
    # How byte-level BPE writes bytes: printable Latin-1 characters stand for themselves, the
    # other bytes have, in order, the characters from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(printable))
    characters = [*printable, *range(0x100, 0x100 + len(others))]
    return dict(zip(map(chr, characters), [*printable, *others], strict=True))
