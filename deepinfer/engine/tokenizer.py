"""The border between text and token ids.

It owns the checkpoint's `tokenizer.json` and knows nothing of chat formats: what it is given is
encoded as it stands, and no BOS is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from deepinfer.arch import Arch
from deepinfer.errors import CheckpointError, RequestError


class TextTokenizer:
    """Encodes and decodes text with the tokenizer of one checkpoint.

    Attributes:
        library: the `tokenizers.Tokenizer`, for what is derived from the vocabulary itself.
        vocab_size: ids the tokenizer names, at most the rows of the model's embedding.
    """

    def __init__(self, directory: Path, arch: Arch):
        """Read `tokenizer.json`.

        Args:
            directory: the checkpoint directory.
            arch: its architecture; `vocab_size` bounds the ids.

        Raises:
            CheckpointError: the file is missing or damaged, or it names ids that the model has no
                embedding for.
        """
        file = directory / "tokenizer.json"
        self.library = _load(file)
        self.vocab_size = 1 + max(
            self.library.get_vocab(with_added_tokens=True).values(), default=-1
        )
        self._ids = arch.vocab_size
        if self.vocab_size > arch.vocab_size:
            raise CheckpointError(
                str(file),
                [
                    f"it names ids up to {self.vocab_size - 1} but vocab_size of config.json is "
                    f"{arch.vocab_size}; take both files from the same checkpoint"
                ],
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written out in it become their single ids.

        Raises:
            RequestError: the text holds half of a surrogate pair, which no UTF-8 text can.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"text holds a lone surrogate {text[error.start]!r} at position {error.start}; "
                "send valid Unicode"
            ) from None
        return self.library.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that form no complete character become U+FFFD.

        Args:
            ids: each in [0, vocab_size of the model); ids without a token have no text.
            skip_special_tokens: leave out tokens marked special in `tokenizer.json` (such as
                BOS and EOS; `<think>` is not one of them in the release).

        Raises:
            ValueError: an id is outside the model's vocabulary.
        """
        for token_id in ids:
            if not 0 <= token_id < self._ids:
                raise ValueError(f"token id {token_id} is not in [0, {self._ids})")
        return self.library.decode(list(ids), skip_special_tokens=skip_special_tokens)


def _load(file: Path) -> Tokenizer:
    if not file.is_file():
        raise CheckpointError(str(file), ["no such file; a checkpoint directory holds one"])
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(str(file), [f"no readable tokenizer: {error}"]) from error
    # A file saved after training may ask for either; both would change prompts without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
