"""The offline job: one result for every line, good or bad."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.device import find_device
from deepinfer.engine.jobs import Job, Offline, parse_lines
from deepinfer.engine.sequential import Sequential
from tests.model.networks import network

OFFLINE = Offline(Sequential(network(), find_device("cpu"), max_model_len=40), None)


def parse(*lines: object, scoring: bool = False) -> list[Job]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return list(parse_lines(texts, scoring=scoring))


def test_every_form_of_a_line_is_read():
    jobs = parse(
        '"hi"', {"prompt": "hi", "id": 7}, "", {"prompt_token_ids": [1, 2], "max_tokens": 3}
    )
    assert jobs == [
        Job("0", prompt="hi"),
        Job("7", prompt="hi"),
        Job("2", token_ids=(1, 2), max_tokens=3),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "expected an object or a string, found list"),
        ({"text": "hi"}, "unknown key.s. .'text'."),
        ({}, "exactly one of"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "exactly one of"),
        ({"prompt": 3}, "prompt is not a string but int"),
        ({"prompt_token_ids": "12"}, "not a list of integers"),
        ({"prompt_token_ids": [1, True]}, "not a list of integers"),
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens '9' is not an integer"),
        ({"prompt": "a", "max_tokens": None}, "max_tokens None is not an integer"),
    ],
)
def test_a_bad_line_becomes_a_job_with_its_reason(line, message):
    import re

    (job,) = parse(line)
    assert job.error is not None
    assert re.search(message, job.error), job.error
    result = OFFLINE.generate(job, 4)
    assert result.error == job.error
    assert result.outputs == ()


def test_scoring_knows_no_max_tokens():
    (job,) = parse({"prompt": "a", "max_tokens": 3}, scoring=True)
    assert "unknown key(s) ['max_tokens']" in (job.error or "")


@given(st.lists(st.text() | st.dictionaries(st.text(), st.integers()), max_size=8))
def test_there_is_one_job_a_line_whatever_it_holds(values):
    lines = [json.dumps(value) for value in values]
    assert len(list(parse_lines(lines))) == len(lines)


def test_one_bad_request_leaves_the_others_alone():
    good = {"prompt_token_ids": [5, 7, 9]}
    bad = [{"prompt_token_ids": []}, {"prompt_token_ids": [999]}, {"prompt": "text"}]
    results = [OFFLINE.generate(job, 4) for job in parse(good, *bad, good)]
    errors = [result.error for result in results]
    assert errors[0] is errors[-1] is None
    assert all(errors[1:-1])
    assert results[0].outputs == results[-1].outputs
    assert "no tokenizer.json" in (errors[3] or "")
    scores = [OFFLINE.score(job) for job in parse(good, *bad, good, scoring=True)]
    assert scores[0].logprobs == scores[-1].logprobs
    assert [bool(score.error) for score in scores] == [False, True, True, True, False]


def test_perplexity_is_the_exponential_of_the_mean_loss():
    (job,) = parse({"prompt_token_ids": [5, 7, 9]}, scoring=True)
    score = OFFLINE.score(job)
    assert score.perplexity == pytest.approx(2.718281828459045 ** (-sum(score.logprobs) / 2))
    (single,) = parse({"prompt_token_ids": [5]}, scoring=True)
    assert OFFLINE.score(single).perplexity is None
