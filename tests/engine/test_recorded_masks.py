"""Traces of constrained requests: replayed with the masks of the recording, without the grammar."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.record import FileRecorder, read_requests, read_trace, replay
from deepinfer.engine.recorded_masks import (
    RecordedMatcher,
    masks_of,
    masks_record,
    of_tokens,
    packed,
    unpacked,
)
from deepinfer.engine.rerun import rerun
from deepinfer.errors import ConfigError
from deepinfer.step import StepMasks
from tests.engine.constrained import Knowing, run, service
from tests.engine.engines import LIMITS
from tests.engine.test_structured import MIX, params

SERVED = [*MIX[4:7], ("so", params("regex", temperature=0, max_tokens=9)), ("x", params("json"))]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run with drafts, late masks and a step ahead: its limits, trace, names and results."""
    alone = [run(service()[0], [asked])[0] for asked in SERVED]
    answers = [(*o.prompt_token_ids, *c.token_ids) for o in alone for c in o.outputs]
    limits = dataclasses.replace(LIMITS, max_draft=2)
    engine, _ = service(limits, ahead=True, proposer=Knowing(2, answers), patience=0)
    path = tmp_path_factory.mktemp("masks") / "trace"
    recorder = FileRecorder(path, None)
    engine.core._recorder = recorder
    outputs = run(engine, SERVED)
    recorder.close()
    assert engine.core.masks.late > 0
    return limits, path, answers, outputs


def fresh(limits, answers):
    """A runner as it was at the start of the recording."""
    return service(limits, proposer=Knowing(2, answers))[0].core.runner


def test_constrained_steps_replay_to_the_same_results_late_rows_included(recorded):
    limits, path, answers, _ = recorded
    trace = read_trace(path)
    assert any(masks.late for masks in trace.masks.values())
    assert any(masks.legal.any() for masks in trace.masks.values())
    assert {plan.number for plan in trace.plans if plan.masked} == set(trace.masks)
    assert set(replay(trace, fresh(limits, answers))) == {None}


def test_other_masks_give_other_results_and_missing_ones_are_refused(recorded):
    limits, path, answers, _ = recorded
    trace = read_trace(path)
    number, masks = next((n, m) for n, m in trace.masks.items() if len(m.row))
    turned = dataclasses.replace(masks, words=~masks.words)
    found = list(
        replay(trace._replace(masks=trace.masks | {number: turned}), fresh(limits, answers))
    )
    assert any(item is not None and item.number == number for item in found)
    less = {n: m for n, m in trace.masks.items() if n != number}
    with pytest.raises(ConfigError, match=f"step {number} had grammar masks, which are not"):
        list(replay(trace._replace(masks=less), fresh(limits, answers)))


def test_each_constrained_request_alone_is_equal_and_a_changed_choice_is_not(recorded):
    _, path, _, outputs = recorded
    core = service()[0].core
    requests = read_requests(path)
    assert len(requests) == sum(len(output.outputs) for output in outputs)
    constrained = [item for item in requests.values() if item.constrained]
    assert len(constrained) == 5
    for item in requests.values():
        assert rerun(core, item).kind == "equal", item.request.request_id
        assert bool(item.answer.masks) == item.constrained
    for item in constrained[1:4]:
        token, mask = item.answer.token_ids[-2], item.answer.masks[-2]
        if mask is None:
            continue
        bits = np.unpackbits(unpacked(mask).view(np.uint8), bitorder="little")
        assert bits[token] == 1
        illegal = next(id for id in range(20, 90) if not bits[id])
        tokens = [*item.answer.token_ids[:-2], illegal]
        changed = dataclasses.replace(
            item.answer, token_ids=tokens, logprobs=[], finish_reason="length",
            masks=item.answer.masks[:-1],
        )  # fmt: skip
        verdict = rerun(core, item._replace(answer=changed))
        assert (verdict.kind, verdict.place and verdict.place.position) == (
            "corruption",
            len(tokens) - 1,
        )


def test_masks_survive_as_json_and_other_text_is_refused():
    rng = np.random.default_rng(3)
    words = rng.integers(-(1 << 31), 1 << 31, (2, 3, 5), dtype=np.int64).astype(np.int32)
    masks = StepMasks(np.array([2, 7], np.int32), words, np.array([1, 0], np.int32), (1,), (4, 5))
    again = masks_of(json.loads(json.dumps(masks_record(masks))))
    assert (again.row.tolist(), again.legal.tolist()) == ([2, 7], [1, 0])
    assert (again.free, again.late) == ((1,), (4, 5))
    np.testing.assert_array_equal(again.words, words)
    assert again.words.dtype == np.int32
    none = StepMasks(*(np.zeros(s, np.int32) for s in (0, (0, 3, 0), 0)), free=(3,))
    assert masks_of(json.loads(json.dumps(masks_record(none)))).words.shape == (0, 3, 0)
    for text in ("", "no base64!", "QUJD"):
        with pytest.raises(ValueError, match="."):
            unpacked(text)
    texts = of_tokens(masks, 7, 2)
    assert [unpacked(text).tolist() for text in texts if text] == words[1, :2].tolist()
    assert of_tokens(masks, 1, 2) == of_tokens(None, 7, 2) == [None, None]


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.data())
def test_a_recorded_matcher_gives_each_mask_where_its_tokens_stand(masked, data):
    tokens = list(range(len(masked)))
    masks = [packed(np.array([1 << i], np.int32)) if m else None for i, m in enumerate(masked)]
    matcher = RecordedMatcher(tokens, masks, 1)
    place, lost = 0, False
    while place < len(tokens):
        drafts = data.draw(st.lists(st.integers(0, 6), max_size=3))
        if data.draw(st.booleans()):
            drafts = tokens[place : place + 3]
        rows = np.zeros((1 + len(drafts), 1), np.int32)
        assert matcher.fill_masks(drafts, rows) == len(drafts)
        expected = [
            1 << at
            if not lost and at < len(tokens) and masked[at] and drafts[:count] == tokens[place:at]
            else -1
            for count, at in enumerate(range(place, place + len(drafts) + 1))
        ]
        assert rows[:, 0].tolist() == expected
        assert matcher.is_free_after(drafts) == (set(expected) == {-1})
        taken = data.draw(st.sampled_from([[tokens[place]], tokens[place : place + 2], [99]]))
        assert matcher.accept(taken) == len(taken)
        lost |= taken == [99]
        place += len(taken)
