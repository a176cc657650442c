"""Choosing tokens: against a literal model written with lists, and by hand-worked rows."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.sample import SamplerTable, raw_logprobs, sample, top_logprobs
from deepinfer.ops.sample.cases import SAMPLINGS, admitted
from deepinfer.ops.sample.law import truncate
from deepinfer.ops.sample.rules import unpack
from deepinfer.step import FLAG_EMPTY, FLAG_NAN, Admit, RowSampling
from tests.ops import numpy_noise
from tests.ops.small import same

VOCAB = 12
INF = math.inf
MOST = np.finfo(np.float32).max


def choose(logits, sampling, prefix=(3,), prompt_len=1, masks=None, keep_law=True, seed=977):
    """One row, alone."""
    table = SamplerTable(2)
    table.admit(admitted(1, prompt_len, sampling)._replace(seed=seed))
    return sample.reference(
        torch.as_tensor(logits, dtype=torch.float32).unsqueeze(0),
        table.state,
        torch.tensor([1]),
        torch.tensor([len(prefix)]),
        torch.tensor([[0] * len(prefix), list(prefix)]),
        masks,
        keep_law,
    )


def left(result):
    """Ids with a probability in the law that was drawn from."""
    return [i for i, value in enumerate(result.law[0].tolist()) if value > -INF]


# --- the literal model ---------------------------------------------------------------------------


def naive_possible(logits, admit, prefix, mask):
    """Steps 1 to 3 on a list of fp32 logits, one id at a time."""
    rules, out = admit.sampling, list(prefix[admit.prompt_len :])
    one = np.float32
    result = []
    for i, logit in enumerate(logits):
        dead = rules.allowed_token_ids is not None and i not in rules.allowed_token_ids
        for word in rules.bad_words:
            before = list(word[:-1])
            dead |= word[-1] == i and (not before or out[-len(before) :] == before)
        dead |= len(out) < rules.min_tokens and i in (admit.end_id, *admit.stop_ids)
        dead |= mask is not None and not mask[i]
        value = one(logit) + one(dict(rules.logit_bias).get(i, 0.0))
        if i in prefix:
            penalty = one(rules.repetition_penalty)
            value = value / penalty if value > 0 else value * penalty
        value = value - one(rules.frequency_penalty) * one(out.count(i))
        value = value - one(rules.presence_penalty) * one(i in out)
        result.append(-INF if dead else float(np.clip(value, -MOST, MOST)))
    return result


def naive_law(possible, rules):
    """Steps 4 to 7: id -> fp32 scaled logit of what is left."""
    best = max(possible)
    scaled = {
        i: (np.float32(v) - np.float32(best)) / np.float32(rules.temperature)
        for i, v in enumerate(possible)
        if v > -INF
    }
    scaled = {i: v for i, v in scaled.items() if v > -INF}  # out of fp32's range
    if rules.min_p > 0:
        scaled = {i: v for i, v in scaled.items() if v >= np.float32(math.log(rules.min_p))}
    order = sorted(scaled, key=lambda i: (-scaled[i], i))
    order = order[: rules.top_k] if rules.top_k > 0 else order
    # Masses are multiples of 2^-44: what is next to impossible does not move a cut.
    weight = {i: round(math.exp(float(scaled[i])) * 2**44) for i in order}
    wanted = Fraction(rules.top_p) * sum(weight.values())
    kept, reached = {}, 0
    for i in order:
        if rules.top_p < 1 and reached >= wanted:
            break
        kept[i] = scaled[i]
        reached += weight[i]
    return kept


def naive_token(logits, admit, prefix, mask):
    """(token, flag, law as in `naive_law`), drawn with the NumPy generator."""
    with np.errstate(over="ignore"):
        return naive_choice(logits, admit, prefix, mask)


def naive_choice(logits, admit, prefix, mask):
    rules = admit.sampling
    forced = dict(enumerate(rules.forced_token_ids)).get(len(prefix) - admit.prompt_len, -1)
    if not all(math.isfinite(v) for v in logits):
        return -1, FLAG_NAN, None
    possible = naive_possible(logits, admit, prefix, mask)
    if max(possible) == -INF:
        return (forced, 0, {forced: 0.0}) if forced >= 0 else (-1, FLAG_EMPTY, None)
    if forced >= 0:
        return forced, 0, {forced: 0.0}
    if rules.temperature < 1e-5:
        token = possible.index(max(possible))
        return token, 0, {token: 0.0}
    kept = naive_law(possible, rules)
    ids = sorted(kept)
    word = numpy_noise.philox_words(admit.seed, len(prefix), 0, admit.sample, ids)
    score = np.array([kept[i] for i in ids], np.float32) + numpy_noise.gumbel(word)
    return ids[int(score.argmax())], 0, kept


# Few values, so that ties are common; some huge ones.
ordinary = st.one_of(
    st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0, 3.0]), st.floats(-30, 30, width=32)
)
numbers = st.one_of(ordinary, st.sampled_from([-3e38, 3e38]))
ids = st.integers(0, VOCAB - 1)
samplings = st.builds(
    RowSampling,
    temperature=st.sampled_from([0.0, 9e-6, 0.01, 0.6, 1.0, 5.0]),
    top_p=st.sampled_from([1.0, 0.5, 0.25, 0.9137, 1e-9]),
    top_k=st.sampled_from([0, -1, 1, 3, 7, 2**80]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.25, 0.5]),
    min_tokens=st.integers(0, 4),
    logprobs=st.sampled_from([None, -1, 2, 2**80]),
    processed_logprobs=st.booleans(),
    logit_bias=st.dictionaries(ids, st.sampled_from([-100.0, 0.5, 100.0]), max_size=2).map(
        lambda d: tuple(d.items())
    ),
    allowed_token_ids=st.one_of(st.none(), st.sets(ids, min_size=1).map(tuple)),
    bad_words=st.lists(
        st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3
    ).map(tuple),
    forced_token_ids=st.lists(st.sampled_from([-1, -1, 4]), max_size=3).map(tuple),
)


@st.composite
def requests(draw):
    prefix = draw(st.lists(st.integers(0, 4), min_size=1, max_size=7))
    admit = Admit(
        row=draw(st.integers(1, 6)),
        slot=1,
        ids=(),
        prompt_len=draw(st.integers(1, len(prefix))),
        cached=0,
        encoder_start=0,
        decoder_start=0,
        limit=100,
        end_id=draw(st.sampled_from([-1, 5])),
        stop_ids=draw(st.lists(ids, max_size=10).map(tuple)),
        seed=draw(st.integers(0, 2**64 - 1)),
        sample=draw(st.integers(0, 5)),
        sampling=draw(samplings),
    )
    logits = draw(st.lists(numbers, min_size=VOCAB, max_size=VOCAB))
    if draw(st.integers(0, 9)) == 0:
        logits[draw(ids)] = draw(st.sampled_from([math.nan, INF, -INF]))
    mask = draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB)))
    return admit, prefix, logits, mask


def packed(mask):
    """int32 words of a list of bools; None allows everything."""
    value = sum(1 << i for i, bit in enumerate(mask or [True] * VOCAB) if bit)
    return [value - (1 << 32) if value >= 1 << 31 else value]


@given(st.lists(requests(), min_size=1, max_size=6, unique_by=lambda item: item[0].row))
def test_every_row_of_a_batch_equals_the_literal_model(batch):
    table = SamplerTable(7)
    tokens = torch.full((7, 9), -7)  # what lies behind a prefix is never read
    for admit, prefix, _, _ in batch:
        table.admit(admit)
        tokens[admit.row, : len(prefix)] = torch.tensor(prefix)
    found = sample.reference(
        torch.tensor([logits for _, _, logits, _ in batch]),
        table.state,
        torch.tensor([admit.row for admit, *_ in batch]),
        torch.tensor([len(prefix) for _, prefix, *_ in batch]),
        tokens,
        torch.tensor([packed(mask) for *_, mask in batch], dtype=torch.int32),
        keep_law=True,
    )
    for i, (admit, prefix, logits, mask) in enumerate(batch):
        token, flag, law = naive_token(logits, admit, prefix, mask)
        assert (int(found.tokens[i]), int(found.flags[i])) == (token, flag)
        if law is not None:
            assert found.law[i].tolist() == [float(law.get(j, -INF)) for j in range(VOCAB)]


# --- hand-worked rows ----------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_of_the_likeliest():
    assert choose([0.0, 2.0, 1.0, 2.0], RowSampling(temperature=0.0)).tokens.tolist() == [1]


def test_top_k_keeps_exactly_k_and_prefers_lower_ids():
    assert left(choose([1.0, 2.0, 1.0, 1.0], RowSampling(top_k=2))) == [0, 1]


def test_top_p_keeps_the_smallest_prefix_that_reaches_it():
    logits = [math.log(p) for p in (0.125, 0.5, 0.125, 0.25)]
    reached = {0.5: [1], 0.51: [1, 3], 0.75: [1, 3], 0.8: [0, 1, 3], 0.9: [0, 1, 2, 3]}
    for top_p, expected in reached.items():
        law = torch.tensor([logits]).sub(math.log(0.5)).float()
        # Powers of two are not exact as fp32 logarithms: leave a little room at the borders.
        near = top_p - 1e-6 if top_p in (0.5, 0.75) else top_p
        cut = truncate(law, torch.tensor([-INF]), torch.tensor([0]), torch.tensor([near]).double())
        assert (cut[0] > -INF).nonzero().flatten().tolist() == expected


def test_top_p_of_equal_ids_keeps_the_lowest_ones():
    assert left(choose([0.0] * 8, RowSampling(top_p=0.5))) == [0, 1, 2, 3]
    assert left(choose([0.0] * 8, RowSampling(top_p=1e-6))) == [0]


def test_top_p_counts_the_mass_that_top_k_has_left():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert left(choose(logits, RowSampling(top_p=0.5))) == [0, 1]  # 0.4 < 0.5
    assert left(choose(logits, RowSampling(top_p=0.5, top_k=2))) == [0]  # 0.4 / 0.7 >= 0.5


def test_min_p_is_relative_to_the_likeliest_and_comes_after_temperature():
    logits = [0.0, math.log(0.2), math.log(0.05)]
    assert left(choose(logits, RowSampling(min_p=0.1))) == [0, 1]
    assert left(choose(logits, RowSampling(min_p=0.1, temperature=2.0))) == [0, 1, 2]


def test_penalties_look_at_prompt_and_outputs_as_documented():
    prefix, logits = (0, 1, 2, 2), [4.0, 4.0, 4.0, 4.0, -4.0]
    # Prompt (0, 1), outputs (2, 2): repetition halves 0, 1, 2; 2 loses 2 x 0.25 and 0.5 more.
    rules = RowSampling(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5)
    law = choose(logits, rules, prefix, prompt_len=2).law[0]
    assert law.tolist() == [-2.0, -2.0, -3.0, 0.0, -8.0]
    negative = choose([-0.5, 0.0], RowSampling(repetition_penalty=2.0), (0,)).law[0]
    assert negative.tolist() == [-1.0, 0.0]


def test_a_bad_word_is_stopped_at_its_last_id_and_only_within_the_output():
    rules = RowSampling(temperature=0.0, bad_words=((7, 8, 1),))
    logits = [0.0, 1.0]
    assert choose(logits, rules, (5, 7, 8), prompt_len=1).tokens.tolist() == [0]
    assert choose(logits, rules, (5, 7, 8), prompt_len=2).tokens.tolist() == [1]
    assert choose(logits, rules, (5, 8, 7), prompt_len=1).tokens.tolist() == [1]
    assert choose(logits, rules, (8,), prompt_len=1).tokens.tolist() == [1]


def test_no_end_or_stop_id_before_min_tokens():
    rules = RowSampling(temperature=0.0, min_tokens=2)
    logits = [0.0, 9.0, *[0.5] * 6, 8.0, 7.0]  # 1 is the end token, 8 and 9 are stop ids
    for generated, expected in ((0, 2), (1, 2), (2, 1), (3, 1)):
        result = choose(logits, rules, (0,) * (1 + generated), prompt_len=1)
        assert result.tokens.tolist() == [expected]


def test_forced_ids_replace_the_draw_and_report_their_own_log_probability():
    rules = RowSampling(forced_token_ids=(2, -1, 0), logprobs=1, temperature=0.0)
    for generated, token, rank in ((0, 2, 3), (1, 1, 1), (2, 0, 2), (3, 1, 1)):
        result = choose([1.0, 2.0, 0.0], rules, (0,) * (1 + generated), prompt_len=1)
        assert result.tokens.tolist() == [token]
        assert result.logprobs.ranks.tolist() == [rank]


def test_a_forced_id_comes_even_where_nothing_is_possible():
    rules = RowSampling(forced_token_ids=(2,), allowed_token_ids=(1,), min_tokens=3)
    found = choose([0.0] * 10, rules)
    assert (found.tokens.tolist(), found.flags.tolist()) == ([2], [0])


def test_ties_at_a_cut_go_to_lower_ids_in_a_large_vocabulary_too():
    logits = torch.randint(0, 3, (20_000,)).float()
    best, middle = ((logits == value).nonzero().flatten().tolist() for value in (2, 1))
    expected = sorted(best + middle[:1000])
    assert left(choose(logits, RowSampling(top_k=len(best) + 1000))) == expected


def test_rows_without_a_finite_logit_or_a_possible_id_get_a_flag_and_no_token():
    nan = choose([0.0, math.nan], RowSampling(logprobs=1))
    assert (nan.tokens.tolist(), nan.flags.tolist()) == ([-1], [FLAG_NAN])
    assert nan.logprobs.ids.tolist() == [[-1]]
    only_end = RowSampling(allowed_token_ids=(1,), min_tokens=3)
    empty = choose([0.0] * 10, only_end)
    assert (empty.tokens.tolist(), empty.flags.tolist()) == ([-1], [FLAG_EMPTY])
    masked = choose([0.0, 1.0], RowSampling(), masks=torch.zeros(1, 1, dtype=torch.int32))
    assert masked.flags.tolist() == [FLAG_EMPTY]


def test_a_mask_of_the_wrong_size_or_dtype_is_refused():
    for masks in (torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int64)):
        with pytest.raises(ValueError, match="int32 words"):
            choose([0.0, 1.0], RowSampling(), masks=masks)


def test_masks_unpack_bit_by_bit():
    bits = torch.rand(5, 70) < 0.5
    words = [
        [sum(int(b) << i for i, b in enumerate(part)) for part in row.split(32)] for row in bits
    ]
    signed = torch.tensor(words).to(torch.int32)
    assert (unpack(signed, 70) == bits).all()


def test_no_row_gives_no_token():
    table = SamplerTable(2)
    none = torch.zeros(0, dtype=torch.int64)
    found = sample.reference(torch.zeros(0, 9), table.state, none, none, torch.zeros(2, 4).long())
    assert found.tokens.shape == (0,)


# --- what does not matter ------------------------------------------------------------------------


def test_paths_that_save_work_give_the_tokens_of_the_full_path():
    logits = torch.randn(400, 50) * 3
    rows, positions = torch.ones(400).long(), torch.arange(1, 401)
    tokens = torch.randint(0, 50, (3, 400))
    plain, busy = SamplerTable(3), SamplerTable(3)
    everything = RowSampling(
        top_p=0.5, bad_words=((1,),), repetition_penalty=2.0, min_tokens=9, logprobs=4
    )
    for table in (plain, busy):
        table.admit(admitted(1, 1, RowSampling()))
    busy.admit(admitted(2, 1, everything._replace(logit_bias=((1, 5.0),), forced_token_ids=(3,))))
    results = [
        sample.reference(logits, table.state, rows, positions, tokens, None, True)
        for table in (plain, busy)
    ]
    assert (results[0].tokens == results[1].tokens).all()
    assert (results[0].law == results[1].law).all()


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.one_of(st.none(), st.sampled_from(SAMPLINGS))), max_size=12
    ),
)
def test_a_table_after_any_changes_is_the_table_of_its_rows(changes):
    table, rows = SamplerTable(5), {}
    for number, (row, sampling) in enumerate(changes):
        if sampling is not None:
            stops = tuple(range(number * 2))
            rows[row] = admitted(row, number, sampling)._replace(stop_ids=stops)
            table.admit(rows[row])
        elif row in rows:
            del rows[row]
            table.release(row)
    fresh = SamplerTable(5)
    for admit in rows.values():
        fresh.admit(admit)
    at = torch.tensor(sorted(rows), dtype=torch.int64)
    arguments = (torch.randn(len(at), 40), at, at + 30, torch.randint(0, 9, (5, 40)))
    logits, _, positions, tokens = arguments
    found = sample.reference(logits, table.state, at, positions, tokens, None, True)
    assert same(found, sample.reference(logits, fresh.state, at, positions, tokens, None, True))
    assert table.state.uses == fresh.state.uses


# --- log-probabilities ---------------------------------------------------------------------------


@given(st.lists(ordinary, min_size=VOCAB, max_size=VOCAB), ids, st.integers(0, VOCAB))
def test_log_probabilities_are_log_softmax_in_the_stated_order(logits, token, count):
    values = raw_logprobs(torch.tensor([logits]))
    expected = torch.tensor([logits], dtype=torch.float64).log_softmax(1)
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-8)
    found = top_logprobs(values, torch.tensor([token]), count)
    order = sorted(range(VOCAB), key=lambda i: (-values[0, i].item(), i))
    listed = [i if values[0, i] > -INF else -1 for i in order]
    assert found.ids[0].tolist() == listed[:count]
    assert found.values[0].tolist() == [values[0, i].item() for i in order[:count]]
    assert found.ranks.tolist() == [order.index(token) + 1]
    assert found.chosen.tolist() == values[0, [token]].tolist()


def test_each_row_reports_what_it_asked_for():
    table = SamplerTable(5)
    wanted = (None, 0, 2, -1)
    for row, count in enumerate(wanted, start=1):
        table.admit(admitted(row, 1, RowSampling(logprobs=count, temperature=0.0)))
    rows = torch.arange(1, 5)
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(4, 4)
    found = sample.reference(logits, table.state, rows, rows, torch.zeros(5, 9).long()).logprobs
    assert found.ids.tolist() == [[-1] * 4, [-1] * 4, [1, 3, -1, -1], [1, 3, 2, 0]]
    assert found.ranks.tolist() == [0, 1, 1, 1]
    assert found.chosen[0] == 0
    torch.testing.assert_close(found.chosen[1:], logits[1:].log_softmax(1)[:, 1])


def test_processed_log_probabilities_are_those_of_the_law_that_is_drawn_from():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    rules = RowSampling(top_k=2, logprobs=3, processed_logprobs=True, temperature=0.5)
    found = choose(logits, rules).logprobs
    expected = torch.tensor([0.16 / 0.25, 0.09 / 0.25]).log()
    torch.testing.assert_close(found.values[0, :2], expected, rtol=1e-5, atol=1e-6)
    assert found.ids.tolist() == [[0, 1, -1]]
    greedy = choose(logits, rules._replace(temperature=0.0)).logprobs
    assert greedy.ids.tolist() == [[0, -1, -1]]
    assert greedy.chosen.tolist() == [0.0]


def test_entries_of_log_probabilities_keep_no_row_of_the_vocabulary_alive():
    values = raw_logprobs(torch.randn(5, 200))
    for count in (0, 3, 200):
        found = top_logprobs(values, torch.tensor([3, 9, -1, 0, 1]), count)
        for column in found:
            assert column.untyped_storage().nbytes() == column.numel() * column.element_size()
