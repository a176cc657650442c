"""Ids of prompts and the text of ids, with the real tokenizer of V4."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.nano.tokenizer import train_tokenizer
from deepinfer.recipe import (
    Conversation,
    DeepseekV4Encoding,
    DeepseekV41Encoding,
    SpecialToken,
    SpecialTokens,
    Tokenizer,
    UrlImageSource,
    UserMessage,
)
from deepinfer.recipe.tokens import IMAGE_SPECIAL_TOKEN_ID, TokenizerError
from tests.recipe.conversations import TEXT
from tests.recipe.oracle import tokenizer_text

NAMED = 129_280


@pytest.fixture(scope="module")
def v4() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_text())


@pytest.fixture(scope="module")
def v41(v4) -> Tokenizer:
    return v4.for_v41()


def plain(*messages: str) -> Conversation:
    return Conversation([UserMessage(text) for text in messages], thinking_mode=False)


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ("", 4),
        ("x", 5),
        ("<｜User｜>", 9),
        ("<｜Assistant｜>", 9),
        ("<｜System｜>", 9),
        ("<think>", 7),
        ("</think>", 7),
    ],
)
def test_prompts_have_as_many_tokens_as_the_live_api_counts(v41, content, count):
    assert len(DeepseekV41Encoding().with_tokenizer(v41).encode(plain(content))) == count


def test_a_special_token_typed_by_a_user_is_ordinary_text(v41):
    ids = DeepseekV41Encoding().with_tokenizer(v41).encode(plain("<｜User｜>"))
    assert ids == [0, 128803, 30, 28217, 6756, 28217, 32, 128804, 128822]
    assert v41.encode("<｜User｜>") == [128803]


def test_v41_knows_its_system_and_image_tokens(v41):
    prompt = DeepseekV41Encoding().render_conversation(Conversation([UserMessage("q")]))
    assert v41.encode_prompt(prompt)[:2] == [0, 128799]
    assert v41.with_special_ids({"<｜User｜>": 7}).encode_prompt(prompt).count(7) == 1
    image = DeepseekV41Encoding().with_special_tokens(SpecialTokens(user="<｜image｜>"))
    assert IMAGE_SPECIAL_TOKEN_ID in image.with_tokenizer(v41).encode(plain("q"))


def test_a_file_that_names_the_system_token_itself_is_believed(v4):
    own = v4.with_special_ids({"<｜System｜>": 5}).for_v41()
    prompt = DeepseekV41Encoding().render_conversation(Conversation([UserMessage("q")]))
    assert own.encode_prompt(prompt)[:2] == [0, 5]


def test_the_embedded_model_has_the_tokens_of_v41():
    library = train_tokenizer("some text, 東京\n\n" * 4, 400)
    nano = Tokenizer.from_str(library.to_str()).for_v41()
    image = SpecialToken.Image.value
    message = UserMessage(f"a{image}", [UrlImageSource("u")])
    ids = DeepseekV41Encoding().with_tokenizer(nano).encode(Conversation([message]))
    assert ids[1] == library.token_to_id("<｜System｜>")
    assert [library.id_to_token(token_id) for token_id in ids].count("<｜deepseek_image｜>") == 1


def test_a_missing_special_token_is_named(v4):
    thinking = Conversation([UserMessage("q")])
    with pytest.raises(
        RuntimeError, match='special token "<｜System｜>" is not in the added vocab'
    ):
        DeepseekV41Encoding().with_tokenizer(v4).encode(thinking)
    spelled = DeepseekV4Encoding().with_special_tokens(SpecialTokens(user="hello"))
    with pytest.raises(TokenizerError, match='"hello" is not in the added vocabulary'):
        spelled.with_tokenizer(v4).encode(plain("q"))


def test_encoding_needs_a_tokenizer():
    with pytest.raises(RuntimeError, match="no tokenizer is attached"):
        DeepseekV4Encoding().encode(plain("q"))
    with pytest.raises(TypeError, match="tokenizer must be Tokenizer, not str"):
        DeepseekV4Encoding().with_tokenizer("tokenizer.json")  # pyright: ignore


def test_with_methods_leave_the_encoding_as_it_is(v4):
    bare = DeepseekV4Encoding()
    bare.with_tokenizer(v4).with_special_tokens(SpecialTokens(bos="<b>"))
    assert bare.render_conversation(plain("q")).prompt.startswith(SpecialToken.Bos.value)
    with pytest.raises(RuntimeError):
        bare.encode(plain("q"))


@given(st.lists(TEXT, max_size=3))
def test_ids_of_a_prompt_spell_the_prompt(v41, texts):
    encoding = DeepseekV41Encoding()
    prompt = encoding.render_conversation(plain(*texts))
    ids = encoding.with_tokenizer(v41).encode(plain(*texts))
    assert b"".join(map(v41.token_bytes, ids)).decode() == prompt.prompt
    specials = {token_id for token_id in ids if token_id >= 128_000 or token_id < 3}
    assert specials <= {0, 128803, 128804, 128822}


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"cannot read .*nothing\.json"):
        Tokenizer.from_file(str(tmp_path / "nothing.json"))
    for text in ("", "{}", '{"version": "1.0", "model"'):
        with pytest.raises(TokenizerError, match="no tokenizer in this"):
            Tokenizer.from_str(text)
    with pytest.raises(TokenizerError, match="decoder is None.*byte-level"):
        Tokenizer.from_str(
            '{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'
        )
    with pytest.raises(TypeError):
        Tokenizer()


def test_pretrained_means_a_directory(tmp_path, v4):
    with pytest.raises(TokenizerError, match="no directory deepseek-ai/nothing; download"):
        Tokenizer.from_pretrained("deepseek-ai/nothing")
    with pytest.raises(ValueError, match="without revision and token"):
        Tokenizer.from_pretrained(str(tmp_path), revision="main")
    (tmp_path / "tokenizer.json").write_text(tokenizer_text(), encoding="utf-8")
    text = "naïve 東京 <think>"
    assert Tokenizer.from_pretrained(str(tmp_path)).encode(text) == v4.encode(text)


def test_text_that_no_utf8_can_write_is_refused(v4):
    with pytest.raises(UnicodeEncodeError):
        v4.encode("a\ud800")


def test_every_token_stands_for_the_bytes_of_its_decoded_text(v4):
    library = v4._whole
    for token_id in range(0, NAMED, 7):
        expected = library.decode([token_id], skip_special_tokens=False)
        assert v4.token_bytes(token_id).decode(errors="replace") == expected
    assert v4.token_bytes(NAMED) == v4.token_bytes(-1) == v4.token_bytes(2**40) == b""


@given(TEXT)
def test_text_comes_back_from_the_bytes_of_its_ids(v4, text):
    assert b"".join(map(v4.token_bytes, v4.encode(text))).decode() == text


def test_the_plain_table_has_no_added_tokens(v4):
    added = json.loads(tokenizer_text())["added_tokens"]
    for token in added[:: len(added) // 40]:
        prompt = DeepseekV4Encoding().render_conversation(plain(token["content"]))
        assert token["id"] not in v4.encode_prompt(prompt)[2:-2]
