"""The tokenizer of the trained model: made from a sample of its own training data.

Every digit is a token of its own, so that columns of numbers line up. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Tokenizer

from deepinfer.eval.draw import Draw
from deepinfer.nano.data.dialogue import Dialogue, rendered_answer
from deepinfer.nano.data.mix import KINDS, TEXT, dialogue
from deepinfer.nano.data.talk import text
from deepinfer.nano.shape import TRAINED_VOCAB_SIZE
from deepinfer.nano.tokenizer import trained
from deepinfer.recipe import (
    ChatCompletionRequest,
    ConversionOptions,
    DeepseekV41Encoding,
    ModelVersion,
)

_SAMPLES = 600  # documents of each kind
_ROOM = 512  # tokens of a look-up
_MODEL = "nano"


def tokenizer() -> Tokenizer:
    """The same one on every call."""
    return trained(_sample(), TRAINED_VOCAB_SIZE, digits=1)


def _sample() -> Iterator[str]:
    """Plain text of documents of every kind."""
    options = ConversionOptions().with_model_alias(_MODEL, ModelVersion.DeepseekV41Flash)
    for kind in range(len(KINDS)):
        draw = Draw("nano vocabulary", kind)
        for _ in range(_SAMPLES):
            if kind == TEXT:
                yield text(draw)
            else:
                yield from _pieces(dialogue(kind, draw, _ROOM), options)


def _pieces(dialogue: Dialogue, options: ConversionOptions) -> Iterator[str]:
    """What stands between the special tokens of a dialogue."""
    request = ChatCompletionRequest({**dialogue.body(), "model": _MODEL}).convert(options)
    prompt = DeepseekV41Encoding().render_conversation(request.conversation)
    for rendered in (prompt, rendered_answer(dialogue)):
        yield from (piece for piece, is_special in rendered.pieces() if not is_special)
