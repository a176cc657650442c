"""Vocabularies of the grammar tests: a tiny one, exhausted by trial, and one like the release's."""

from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Grammar, Limits, Matcher, Vocabulary
from deepinfer.grammar.front import translate
from deepinfer.nano.tokenizer import train_tokenizer

THINK_END, MARK = "</think>", "｜DSML｜"
LIMITS = Limits()

_TEXT = """{"name": "Ada", "items": [1, 2.5, true, null], "unit": "kg"}
the quick brown fox: jumps over <div class="a">the lazy dog</div>
<｜DSML｜ invoke name="get_weather"> parameter string="true" calls
x = 12 * (34 + y) - 2026-11-29T12:00:00Z größer 日本語
"""


@cache
def tiny_vocabulary(size: int = 29) -> Vocabulary:
    """Bytes of `ab()x,"1` and `\\n`, some longer tokens, `</think>`, the DSML mark, two end tokens.

    Ids beyond those have no token. 29 is no multiple of 32; 64 is one.
    """
    single = [*"ab()x,1<>/", "Ċ"]
    longer = ["ab", "aba", "bb", "()", "((", "),", "1,", "11", "x)", "</"]
    ids = {token: number for number, token in enumerate([*single, *longer])}
    tokenizer = Tokenizer(models.BPE(ids, [("a", "b"), ("ab", "a"), ("b", "b"), ("1", "1")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [THINK_END, MARK, "<end>", "<other_end>"]
    tokenizer.add_tokens([AddedToken(name, special=False) for name in names])
    added = len(ids) + 2
    assert tokenizer.token_to_id("<end>") == added
    return Vocabulary(tokenizer.to_str(), size, [added, added + 1])


@cache
def tokenizer() -> Tokenizer:
    """Byte-level, 640 ids, with the special tokens of the release."""
    return train_tokenizer(_TEXT * 3, 640)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer().to_str(), 650, [1])


def compiled(constraint: Constraint, tokens: Vocabulary | None = None) -> Grammar:
    """The grammar of a constraint, made in this process."""
    tokens = tokens or vocabulary()
    return Grammar(constraint, tokens, translate(constraint, tokens, LIMITS), limits=LIMITS)


def refusal_of(constraint: Constraint, tokens: Vocabulary | None = None) -> str:
    """Why there is no grammar; empty if there is one."""
    try:
        compiled(constraint, tokens)
    except RequestError as refusal:
        return str(refusal)
    return ""


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


def legal_ids(matcher: Matcher) -> set[int]:
    """Ids that the mask allows."""
    row = np.zeros(matcher.grammar.vocabulary.words, np.int32)
    matcher.fill_mask(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def satisfies(grammar: Grammar, ids: list[int]) -> bool:
    """Whether a whole text of these tokens may end."""
    matcher = grammar.matcher()
    return matcher.accept(ids) == len(ids) and matcher.is_complete


def text_of(tokens: Vocabulary, ids: list[int]) -> bytes:
    return b"".join(map(tokens.token_bytes, ids))
