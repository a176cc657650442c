import itertools
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deepinfer.arch import Arch
from deepinfer.engine.detokenize import TokenBytes
from deepinfer.engine.stops import StopStrings
from deepinfer.engine.text import OutputText
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.request import SamplingParams

WORDS = ["".join(word) for size in (1, 2, 3) for word in itertools.product("ab", repeat=size)]
AB_TEXT = st.text(alphabet="ab", max_size=40)
AB_STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=9), max_size=4).map(tuple)


def first_stop(text, stops):
    """(start, end, stop) of the first to be complete, by trying every place; None if there is none.

    Among those with the same end it is the one with the smallest start.
    """
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return start, end, text[start:end]
    return None


def certain(text, stops):
    """`text` without its longest end that is the beginning of a stop string."""
    for start in range(len(text)):
        if any(stop != text[start:] and stop.startswith(text[start:]) for stop in stops):
            return text[:start]
    return text


def check_every_step(pieces, stops, include):
    """Compare what is released after each piece, and at the end, with the definition."""
    search = StopStrings(stops, include)
    known = shown = ""
    for piece in pieces:
        known += piece
        emitted = search.push(piece)
        shown += emitted.text
        found = first_stop(known, stops)
        if found is None:
            assert (shown, emitted.stop) == (certain(known, stops), None)
        else:
            start, end, stop = found
            assert (shown, emitted.stop) == (known[: end if include else start], stop)
    finished = search.finish()
    assert finished == ("" if first_stop(known, stops) else known[len(shown) :])


def all_chunkings(text):
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        places = [0, *(i for i, cut in enumerate(cuts, 1) if cut), len(text)]
        yield [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize("include", [False, True])
def test_all_short_texts_stops_and_chunkings_agree_with_the_definition(include):
    for text in map("".join, itertools.product("ab", repeat=5)):
        for pieces in all_chunkings(text):
            for stops in itertools.chain(
                itertools.combinations(WORDS, 1), itertools.combinations(WORDS, 2)
            ):
                check_every_step(pieces, stops, include)


@given(stops=AB_STOPS, pieces=st.lists(AB_TEXT, max_size=8), include=st.booleans())
def test_longer_stops_and_pieces_agree_with_the_definition(stops, pieces, include):
    check_every_step(pieces, stops, include)


@given(unit=st.text(alphabet="ab", min_size=1, max_size=4), times=st.integers(1, 6), data=st.data())
def test_self_overlapping_stops_are_not_missed(unit, times, data):
    stop = unit * times + data.draw(st.sampled_from(["", "a", "b", "c"]))
    text = data.draw(AB_TEXT) + unit * data.draw(st.integers(0, 8)) + stop + data.draw(AB_TEXT)
    check_every_step(list(text), (stop,), False)


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stop"),
    [
        ("one END two STOP three END", ("STOP", "END"), "one ", "END"),
        ("x\n\nUser: y", ("\n\nUser:", "\n\n"), "x", "\n\n"),  # same start: ends first
        ("say </end>", ("end>", "</end>", ">"), "say ", "</end>"),  # same end: begins leftmost
        ("abcd", ("abcd", "bc"), "a", "bc"),  # complete first, so nothing waits for "abcd"
        ("émoji 🎉🎊", ("🎊",), "émoji 🎉", "🎊"),
    ],
)
def test_the_first_complete_stop_wins_inside_one_piece(text, stops, shown, stop):
    assert StopStrings(stops, include=False).push(text) == (shown, stop)


def test_text_after_a_stop_is_dropped():
    search = StopStrings(("END",), include=False)
    assert search.push("a EN") == ("a ", None)
    assert search.push("D b") == ("", "END")
    assert search.push("c END") == ("", "END")
    assert search.finish() == ""


@pytest.mark.timeout(20)  # trying every place anew would take 10^9 comparisons
def test_long_stops_and_texts_that_almost_match_take_linear_time():
    stop = "a" * 16_383 + "b"
    search = StopStrings((stop,), include=False)
    shown = [search.push("a").text for _ in range(100_000)]
    assert sum(map(len, shown)) == 100_000 - 16_383
    assert search.push("b") == ("", stop)


# One token a byte, "ab" one token, one that spans words, a special end token, a plain added one.
PAIR, LONG, END, THINK = 256, 257, 258, 259


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, "ab", "bab"]
    tokenizer = Tokenizer(
        models.BPE({name: i for i, name in enumerate(names)}, [("a", "b"), ("b", "ab")])
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.add_tokens(["<think>"])
    directory = tmp_path_factory.mktemp("tokens")
    tokenizer.save(str(directory / "tokenizer.json"))
    arch = cast("Arch", SimpleNamespace(vocab_size=260))
    return TokenBytes(TextTokenizer(directory, arch))


@pytest.fixture(scope="module")
def ids_of(tokens):
    """Ids of bytes, one a byte."""
    ids = {data: token_id for token_id, data in enumerate(tokens.table)}
    return lambda data: [ids[bytes([byte])] for byte in data]


@given(
    ids=st.lists(st.sampled_from(["a", "b", PAIR, LONG, END]), max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=5),
    stops=AB_STOPS,
    include=st.booleans(),
)
def test_an_answer_ends_with_the_token_that_completes_the_stop(
    tokens, ids_of, ids, cuts, stops, include
):
    ids = [i if isinstance(i, int) else ids_of(i.encode())[0] for i in ids]
    texts = [tokens.join(ids[:count], True).decode() for count in range(len(ids) + 1)]
    kept = next((k for k, text in enumerate(texts) if first_stop(text, stops)), len(ids))
    found = first_stop(texts[kept], stops)
    shown = texts[kept] if found is None else texts[kept][: found[1] if include else found[0]]

    params = SamplingParams(stop=stops, include_stop_str_in_output=include)
    output = OutputText(tokens, params)
    places = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    deltas = [output.push(ids[a:b]) for a, b in itertools.pairwise(places)] + [output.finish()]

    assert output.text == "".join(delta.text for delta in deltas) == shown
    assert output.token_ids == ids[:kept]
    assert sum(delta.kept for delta in deltas) == kept
    assert output.stop == deltas[-1].stop == (found and found[2])


def test_tokens_of_the_same_step_after_the_stop_are_dropped(tokens, ids_of):
    output = OutputText(tokens, SamplingParams(stop="ba"))
    assert output.push([PAIR, *ids_of(b"x"), LONG, *ids_of(b"yz")]) == ("abx", "ba", 3)
    assert output.push(ids_of(b"late")) == ("", "ba", 0)
    assert output.finish() == ("", "ba", 0)
    assert (output.text, output.token_ids) == ("abx", [PAIR, *ids_of(b"x"), LONG])


def test_an_end_id_is_kept_without_text(tokens, ids_of):
    output = OutputText(tokens, SamplingParams(skip_special_tokens=False))
    assert output.push([PAIR, END]) == ("ab<end>", None, 2)  # one that does not end anything
    assert output.push([*ids_of(b"c"), THINK], ended=True) == ("c", None, 2)
    assert output.push([], ended=False) == ("", None, 0)
    assert output.finish() == ("", None, 0)


def test_a_stop_before_the_end_id_wins(tokens):
    output = OutputText(tokens, SamplingParams(stop="ab"))
    assert output.push([PAIR, END], ended=True) == ("", "ab", 1)


def test_what_is_held_back_comes_with_the_end(tokens, ids_of):
    output = OutputText(tokens, SamplingParams(stop="STOP"))
    assert output.push(ids_of(b"a ST\xc3")) == ("a ", None, 5)
    assert output.finish() == ("ST\ufffd", None, 0)
    assert output.text == "a ST\ufffd"


def test_a_cut_character_at_the_end_may_complete_a_stop(tokens, ids_of):
    output = OutputText(tokens, SamplingParams(stop="b\ufffd"))
    assert output.push(ids_of(b"ab\xc3")) == ("a", None, 3)
    assert output.finish() == ("", "b\ufffd", 0)


def test_an_answer_goes_on_inside_a_character_of_the_prompt(tokens, ids_of):
    output = OutputText(tokens, SamplingParams(stop="é!"), prompt_ids=ids_of(b"caf\xc3"))
    assert output.push(ids_of(b"\xa9")) == ("", None, 1)
    assert output.push(ids_of(b"?")) == ("é?", None, 1)
