"""Batch files: every line becomes a job, every answer a record, and a cut job goes on."""

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.jobs import AnswerFile, Job, generated, parse_lines, scored
from deepinfer.errors import ConfigError
from deepinfer.request import (
    CompletionOutput,
    RequestOutput,
    SamplingParams,
    ScoreOutput,
    StructuredOutputsParams,
)

DEFAULTS = SamplingParams(temperature=0)


def parse(*lines: object, scoring: bool = False) -> list[Job]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return list(parse_lines(texts, DEFAULTS, scoring=scoring))


def test_every_form_of_a_line_is_read():
    own = {"prompt_token_ids": [1, 2], "max_tokens": 3, "logit_bias": {"7": -1.5}, "priority": 2}
    plain, named, ids = parse('"hi"', {"prompt": "hi", "id": 7}, "", own)
    assert plain == Job(0, "0", "hi", DEFAULTS)
    assert named == Job(1, "7", "hi", DEFAULTS)
    params = SamplingParams(temperature=0, max_tokens=3, logit_bias={7: -1.5})
    assert ids == Job(2, "2", (1, 2), params, 2)


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
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens '9'"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens 0"),
        ({"prompt": "a", "temperature": -1}, "temperature -1"),
        ({"prompt": "a", "temperature": None}, "temperature None"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "no token id"),
        ({"prompt": "a", "logit_bias": {"3": 101}}, "logit_bias of token 3 101"),
        ({"prompt": "a", "stop": ""}, "stop ''"),
        ({"prompt": "a", "priority": "high"}, "priority 'high'"),
    ],
)
def test_a_bad_line_becomes_a_job_with_its_reason(line, message):
    (job,) = parse(line)
    assert job.prompt is None
    assert re.search(message, job.error or ""), job.error


def test_a_line_may_demand_a_form_in_either_spelling_and_goes_before_the_defaults():
    given = dataclasses.replace(DEFAULTS, structured_outputs=StructuredOutputsParams(regex="a"))
    own = {"schema_type": "regex", "schema": "b"}
    texts = [
        json.dumps("x"),
        json.dumps({"prompt": "x", "structured_outputs": {"choice": ["u", "v"]}}),
        json.dumps({"prompt": "x", "so_args": own}),
        json.dumps({"prompt": "x", "structured_outputs": None}),
        json.dumps({"prompt": "x", "structured_outputs": {"choices": ["u"]}}),
        json.dumps({"prompt": "x", "structured_outputs": "json"}),
    ]
    plain, choice, args, none, unknown, text = parse_lines(texts, given)
    assert plain.params.structured_outputs == StructuredOutputsParams(regex="a")
    assert choice.params.structured_outputs == StructuredOutputsParams(choice=["u", "v"])
    assert (args.params.structured_outputs, args.params.so_args) == (None, own)
    assert none.params.structured_outputs is None
    assert "choices" in (unknown.error or "")
    assert "use StructuredOutputsParams" in (text.error or "")


def test_a_record_says_what_was_demanded_and_what_a_second_reader_says():
    completion = CompletionOutput(0, "thought</think>12", (5,), structured="12", violation="wrong")
    (job,) = parse("x")
    record = generated(job, RequestOutput("0", "x", (1,), (completion,)))
    assert (record["structured"], record["violation"]) == ("12", "wrong")
    plain = generated(job, RequestOutput("0", "x", (1,), (CompletionOutput(0, "t", (5,)),)))
    assert not {"structured", "violation", "message"} & set(plain)


def test_a_bad_line_keeps_its_name():
    (job,) = parse({"id": "mine", "prompt": 3})
    assert job.name == "mine"


def test_scoring_knows_no_sampling():
    (job,) = parse({"prompt": "a", "max_tokens": 3}, scoring=True)
    assert "unknown key(s) ['max_tokens']" in (job.error or "")


@given(st.lists(st.text() | st.dictionaries(st.text(), st.integers()), max_size=8))
def test_there_is_one_job_a_line_whatever_it_holds(values):
    lines = [json.dumps(value) for value in values]
    jobs = list(parse_lines(lines, DEFAULTS))
    assert [job.index for job in jobs] == list(range(len(lines)))


def answer(job: Job, *texts: str) -> RequestOutput:
    outputs = tuple(
        CompletionOutput(i, text, (1, 2), finish_reason="stop", seed=5)
        for i, text in enumerate(texts)
    )
    ids = job.prompt if isinstance(job.prompt, tuple) else (9,)
    return RequestOutput(job.name, None, ids, outputs)


def test_records_hold_one_answer_flat_and_several_in_a_list():
    single, several = parse('"a"', {"prompt": "b", "n": 2})
    record = generated(single, answer(single, "x"))
    assert (record["index"], record["prompt"], record["text"], record["seed"]) == (0, "a", "x", 5)
    record = generated(several, answer(several, "x", "y"))
    assert [c["text"] for c in record["outputs"]] == ["x", "y"]  # pyright: ignore
    failed = RequestOutput("0", None, (), (), error="no")
    assert generated(single, failed)["error"] == "no"
    assert scored(single, ScoreOutput("0", (1, 2), (-1.0,)))["perplexity"] == pytest.approx(2.71828)


@given(st.permutations(range(5)), st.integers(0, 5), st.integers(0, 40))
def test_a_killed_job_loses_and_repeats_nothing(tmp_path_factory, order, finished, torn):
    path = tmp_path_factory.mktemp("job") / "answers.jsonl"
    jobs = parse(*[{"prompt_token_ids": [i + 3]} for i in range(5)])
    first = AnswerFile(path, resume=False)
    for i in order[:finished]:
        first.write(generated(jobs[i], answer(jobs[i], f"answer {i}")))
    first._file.close()  # killed: no closing step
    with path.open("a", encoding="utf-8") as file:  # in the middle of a write
        file.write(json.dumps(generated(jobs[0], answer(jobs[0], "torn")))[:torn])
    second = AnswerFile(path, resume=True)
    left = [job for job in jobs if not second.done(job)]
    assert [job.index for job in left] == sorted(order[finished:])
    for job in left:
        second.write(generated(job, answer(job, f"answer {job.index}")))
    second.close(ordered=True)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["index"], line["text"]) for line in lines] == [
        (i, f"answer {i}") for i in range(5)
    ]


def test_answers_of_another_input_are_not_taken_over(tmp_path):
    path = tmp_path / "answers.jsonl"
    (job,) = parse('"a"')
    file = AnswerFile(path, resume=False)
    file.write(generated(job, answer(job, "x")))
    file.close(ordered=True)
    (other,) = parse('"b"')
    with pytest.raises(ConfigError, match="belongs to another input"):
        AnswerFile(path, resume=True).done(other)
    path.write_text("no answers\n")
    with pytest.raises(ConfigError, match="not the output of such a job"):
        AnswerFile(path, resume=True)


def test_a_new_job_starts_an_empty_file(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("old\n")
    AnswerFile(path, resume=False).close(ordered=True)
    assert path.read_text() == ""
    with pytest.raises(ConfigError, match="cannot write"):
        AnswerFile(tmp_path / "no" / "dir", resume=False)
