import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.step import (
    Admit,
    DraftCap,
    PageAppend,
    Prefill,
    RowSampling,
    StepPlan,
    StepResult,
)

small = st.integers(0, 9)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
finite = st.floats(allow_nan=False, allow_infinity=False)
samplings = st.builds(
    RowSampling,
    temperature=finite,
    top_p=finite,
    min_p=finite,
    presence_penalty=finite,
    frequency_penalty=finite,
    repetition_penalty=finite,
    logprobs=st.none() | small,
    prompt_logprobs=st.none() | small,
    processed_logprobs=st.booleans(),
    logit_bias=st.lists(st.tuples(small, finite), max_size=2).map(tuple),
    allowed_token_ids=st.none() | ids,
    bad_words=st.lists(ids, max_size=2).map(tuple),
    forced_token_ids=ids,
)
admits = st.builds(
    Admit,
    *(small,) * 2,
    ids,
    *(small,) * 5,
    st.integers(-1, 9),
    ids,
    st.integers(-(2**63), 2**64 - 1),
    small,
    samplings,
)
plans = st.builds(
    StepPlan,
    number=small,
    admit=st.lists(admits, max_size=2).map(tuple),
    release=ids,
    pages=st.lists(st.builds(PageAppend, small, small, small), max_size=3).map(tuple),
    prefill=st.lists(st.builds(Prefill, small, small, small, st.booleans()), max_size=3).map(tuple),
    decode_add=ids,
    decode_remove=ids,
    draft_budget=small,
    draft_cap=st.lists(st.builds(DraftCap, small, small), max_size=3).map(tuple),
    graph_rows=small,
    max_len_hi=small,
    masked=ids,
    group=small,
)


@given(plans)
def test_a_plan_survives_one_line_of_json(plan):
    text = plan.to_json()
    assert "\n" not in text
    again = StepPlan.from_json(text)
    assert again == plan
    # Equality of named tuples with plain ones would hide a lost type.
    for admit in again.admit:
        assert type(admit) is Admit
        assert type(admit.sampling) is RowSampling
    assert all(type(page) is PageAppend for page in again.pages)
    assert all(type(piece) is Prefill for piece in again.prefill)
    assert all(type(cap) is DraftCap for cap in again.draft_cap)


def test_a_plan_with_an_unknown_field_is_refused():
    text = json.dumps(json.loads(StepPlan(number=0).to_json()) | {"surprise": 1})
    with pytest.raises(TypeError, match="surprise"):
        StepPlan.from_json(text)


def result(**change: Any) -> StepResult:
    columns = {name: np.array([1, 2], np.int32) for name in ("row", "verified", "accepted")}
    values: dict[str, Any] = columns | {
        "number": 3,
        "tokens": np.array([[5, 6, -1], [-1, -1, -1]], np.int32),
        "flags": np.array([0, 8], np.int32),
        "confidence": np.zeros((2, 2), np.float32),
        "drafts": np.array([[4, -1], [-1, -1]], np.int32),
    }
    return StepResult(**values | change)


def test_generated_counts_the_tokens_of_a_row():
    assert result().generated.tolist() == [2, 0]


@pytest.mark.parametrize(
    "name", ["number", "row", "verified", "accepted", "tokens", "flags", "confidence", "drafts"]
)
def test_results_are_equal_but_for_the_time_only_if_every_array_is(name):
    assert result().equal(result(seconds=1.0, prompt_logprobs=()))
    assert not result().equal(result(**{name: getattr(result(), name) + 1}))
