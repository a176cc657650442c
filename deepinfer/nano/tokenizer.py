"""The tokenizer of the embedded model: a byte-level BPE with the release's special tokens.

Trained when the model is built. It does not know what the special tokens are used for.
Source: model.md 3 (names, splitting rules, which of them count as special).
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FIRST_TOKENS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")  # ids 0, 1, 2
NOISE_TOKEN = "<｜place▁holder▁no▁799｜>"  # name of the release's noise id, 128799, in V4
IMAGE_TOKEN = "<｜deepseek_image｜>"

# After the vocabulary, in the order of the release. They stay visible when special tokens are
# skipped: the reasoning and tool marks are read out of the text.
PLAIN_TOKENS = (
    "<｜System｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>",
    "<｜Assistant｜>", "<|EOT|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>", "<｜begin▁of▁repo▁name｜>", "<｜end▁of▁repo▁name｜>",
    "<｜begin▁of▁file▁name｜>", "<｜end▁of▁file▁name｜>", "<｜begin▁of▁file｜>",
    "<｜end▁of▁file｜>", "<think>", "</think>", "｜DSML｜", "<｜begin▁sys｜>", "<｜end▁sys｜>",
    "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>",
    "<｜task｜>", "<｜political｜>", "<｜entity｜>", "<｜title｜>", "<｜safety｜>",
    "<｜answer｜>", "<｜search｜>", "<dsml:", "</dsml:", "<｜search▁begin｜>",
    "<｜search▁end｜>", "<｜extracted_url｜>", "<｜read_url｜>",
)  # fmt: skip
# These are left out of decoded text like BOS and EOS.
HIDDEN_TOKENS = ("<｜end_of_query｜>", "<｜rl_image_pad｜>", "<｜rl_image_start｜>")

_SPLITS = (
    r"[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Train on the paragraphs of `text`, with up to three digits a token; see `trained`."""
    return trained(text.split("\n\n"), vocab_size, digits=3)


def trained(pieces: Iterable[str], vocab_size: int, digits: int) -> Tokenizer:
    """Train on texts and add the special tokens; ids are dense and the image token comes last.

    A text too short for the wanted number of merges leaves ids free before the special tokens;
    they are named as the place-holders of the release are.

    Args:
        pieces: any texts; every byte has a token whether it occurs or not.
        vocab_size: ids in all, more than 256 plus the special tokens.
        digits: most digits of a token, as the release has it 3.

    Returns:
        The same tokenizer for the same arguments.
    """
    tail = [
        AddedToken(NOISE_TOKEN, special=True, normalized=False),
        *(AddedToken(name, special=False, normalized=True) for name in PLAIN_TOKENS),
        *(AddedToken(name, special=True, normalized=False) for name in HIDDEN_TOKENS),
        AddedToken(IMAGE_TOKEN, special=False, normalized=False),
    ]
    numbers = rf"\p{{N}}{{1,{digits}}}"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), "isolated") for split in (numbers, *_SPLITS)),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(tail),
        special_tokens=list(FIRST_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    free = vocab_size - len(tail) - tokenizer.get_vocab_size()
    holders = [f"<｜place▁holder▁no▁{number}｜>" for number in range(free)]
    tokenizer.add_special_tokens(holders)
    tokenizer.add_tokens(tail)
    assert tokenizer.get_vocab_size() == vocab_size
    assert tokenizer.token_to_id(IMAGE_TOKEN) == vocab_size - 1
    return tokenizer


def tokenizer_config(max_positions: int) -> dict[str, object]:
    """The `tokenizer_config.json` that goes with it; EOS is also the tokenizer's pad."""
    bos, eos, _ = FIRST_TOKENS
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": _described(bos),
        "eos_token": _described(eos),
        "pad_token": _described(eos),
        "unk_token": None,
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _described(token: str) -> dict[str, object]:
    return {
        "__type": "AddedToken",
        "content": token,
        "lstrip": False,
        "normalized": True,
        "rstrip": False,
        "single_word": False,
    }
