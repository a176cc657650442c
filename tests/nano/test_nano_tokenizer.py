import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.nano.build import SEED
from deepinfer.nano.corpus import corpus
from deepinfer.nano.shape import VOCAB_SIZE
from deepinfer.nano.tokenizer import (
    FIRST_TOKENS,
    HIDDEN_TOKENS,
    IMAGE_TOKEN,
    NOISE_TOKEN,
    PLAIN_TOKENS,
    train_tokenizer,
)

TEXT = corpus(5, rounds=8)
SPECIALS = [*FIRST_TOKENS, NOISE_TOKEN, *PLAIN_TOKENS, *HIDDEN_TOKENS, IMAGE_TOKEN]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXT, 700)


def test_training_twice_gives_the_same_tokenizer(tokenizer):
    assert train_tokenizer(TEXT, 700).to_str() == tokenizer.to_str()


@pytest.mark.parametrize(("text", "vocab_size"), [(TEXT, 700), ("ab ab ab", 700), ("", 400)])
def test_ids_are_dense_whatever_the_text_offers(text, vocab_size):
    trained = train_tokenizer(text, vocab_size)
    assert sorted(trained.get_vocab().values()) == list(range(vocab_size))
    assert [trained.token_to_id(name) for name in FIRST_TOKENS] == [0, 1, 2]
    assert trained.token_to_id(IMAGE_TOKEN) == vocab_size - 1


@pytest.mark.parametrize("name", SPECIALS)
def test_a_special_token_in_text_is_one_id(tokenizer, name):
    ids = tokenizer.encode(f"a{name}b", add_special_tokens=False).ids
    assert len(ids) == 3
    assert ids[1] == tokenizer.token_to_id(name)
    hidden = name in (*FIRST_TOKENS, NOISE_TOKEN, *HIDDEN_TOKENS)
    assert tokenizer.decode(ids, skip_special_tokens=True) == ("ab" if hidden else f"a{name}b")


@given(text=st.text(max_size=50))
def test_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_words_and_digits_are_split_as_in_the_release(tokenizer):
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str("Hello world, 12345 你好!\n\n  x")
    spans = ["Hello world, 12345 你好!\n\n  x"[start:end] for _, (start, end) in pieces]
    assert spans == ["Hello", " world", ",", " ", "123", "45", " ", "你好", "!\n\n", " ", " x"]


def test_the_default_corpus_fills_the_vocabulary_and_is_shortened_by_it():
    text = corpus(SEED)
    trained = train_tokenizer(text, VOCAB_SIZE)
    assert trained.token_to_id("<｜place▁holder▁no▁0｜>") is None
    assert len(trained.encode(text).ids) < len(text) / 2.5
