"""`LLM` as its users meet it, over the embedded model."""

from typing import Any

import pytest

from deepinfer.engine.llm import LLM
from deepinfer.engine.record import FileRecorder, read_trace, replay
from deepinfer.errors import DeepinferError
from deepinfer.nano.build import random_directory
from deepinfer.request import SamplingParams

SMALL = {
    "device": "cpu",
    "kv_cache_memory_bytes": 64_000_000,
    "max_model_len": 200,
    "max_num_seqs": 8,
}
SHORT = SamplingParams(max_tokens=4, temperature=0, seed=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_directory(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model, **SMALL)


def test_every_form_of_a_prompt_is_taken_and_order_is_kept(llm):
    ids = llm.get_tokenizer().encode("one two")
    prompts = ["one two", ids, {"prompt": "one two"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(prompts, SHORT, use_tqdm=False)
    assert [o.prompt for o in outputs] == ["one two", None, "one two", None]
    assert {o.outputs[0].token_ids for o in outputs} == {outputs[0].outputs[0].token_ids}
    assert all(o.finished and list(o.prompt_token_ids) == ids for o in outputs)
    single = llm.generate("one two", SHORT, use_tqdm=False)
    assert single[0].outputs == outputs[0].outputs
    assert llm.generate(ids, SHORT, use_tqdm=False)[0].outputs == outputs[0].outputs
    assert llm.generate([], SHORT, use_tqdm=False) == []


def test_one_result_a_prompt_whatever_is_wrong_with_some(llm):
    prompts = ["good", "", [1, 999_999], {"text": "x"}, 3.5, [2.5], "a " * 400, "good"]
    outputs = llm.generate(prompts, SHORT, use_tqdm=False)
    assert [o.error is None for o in outputs] == [True, *[False] * 6, True]
    assert outputs[0].outputs == outputs[-1].outputs
    expected = ["empty", "999999", "exactly one of", "float", "no integer", "at most 199"]
    for output, message in zip(outputs[1:-1], expected, strict=True):
        assert message in (output.error or "")


def test_parameters_of_one_prompt_do_not_touch_another(llm):
    bad = SamplingParams(logit_bias={999_999: 1.0})
    outputs = llm.generate(["a", "a", "a"], [SHORT, bad, SHORT], use_tqdm=False)
    assert "999999" in (outputs[1].error or "")
    assert outputs[0].outputs == outputs[2].outputs
    with pytest.raises(ValueError, match="2 sampling_params for 3 prompts"):
        llm.generate(["a", "b", "c"], [SHORT, SHORT])


def test_seeds_reproduce_and_are_reported(llm):
    drawn = SamplingParams(max_tokens=6, temperature=1.0)
    (first,) = llm.generate("the", drawn, use_tqdm=False)
    seed = first.outputs[0].seed
    again = SamplingParams(max_tokens=6, temperature=1.0, seed=seed)
    (second,) = llm.generate("the", again, use_tqdm=False)
    assert second.outputs[0].token_ids == first.outputs[0].token_ids
    (other,) = llm.generate("the", drawn, use_tqdm=False)
    assert other.outputs[0].seed != seed


def test_several_completions_differ_and_come_in_order(llm):
    params = SamplingParams(n=3, max_tokens=6, seed=5)
    (output,) = llm.generate("the", params, use_tqdm=False)
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert len({c.token_ids for c in output.outputs}) == 3
    (one,) = llm.generate("the", SamplingParams(max_tokens=6, seed=5), use_tqdm=False)
    assert one.outputs[0].token_ids == output.outputs[0].token_ids


def test_logprobs_are_of_the_chosen_tokens(llm):
    params = SamplingParams(max_tokens=3, temperature=0, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("one two three", params, use_tqdm=False)
    completion = output.outputs[0]
    for token, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        assert entries[token].rank == 1
        assert len(entries) == 2
    total = sum(
        e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True)
    )
    assert completion.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    (score,) = llm.score("one two three", use_tqdm=False)
    pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    found = [e[t].logprob for t, e in pairs if e]
    assert list(score.logprobs) == found
    (continued,) = llm.score([[*output.prompt_token_ids, *completion.token_ids]], use_tqdm=False)
    assert continued.logprobs[-3:] == tuple(
        e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True)
    )


def test_a_stop_string_ends_the_text_and_the_work(llm):
    params = SamplingParams(max_tokens=12, temperature=0)
    (free,) = llm.generate("def add", params, use_tqdm=False)
    text = free.outputs[0].text
    stop = text[4:7]
    (cut,) = llm.generate(
        "def add", SamplingParams(max_tokens=12, temperature=0, stop=[stop]), use_tqdm=False
    )
    completion = cut.outputs[0]
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert free.outputs[0].token_ids[: len(completion.token_ids)] == completion.token_ids
    assert len(completion.token_ids) < 12
    assert llm.get_metrics()["pages_used"] == 0


def test_results_are_handed_out_as_soon_as_they_are_there(llm):
    seen = []
    params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (9, 2, 5)]
    outputs = llm.generate(
        ["a", "b", "c"], params, use_tqdm=False, on_output=lambda i, o: seen.append((i, o))
    )
    assert [i for i, _ in seen] == [1, 2, 0]
    assert sorted(seen, key=lambda item: item[0]) == list(enumerate(outputs))


def test_a_trace_replays_to_the_same_steps(model, tmp_path):
    trace, statistics = tmp_path / "trace", tmp_path / "statistics"
    recorder = FileRecorder(trace, statistics)
    tight: dict[str, Any] = SMALL | {"max_num_seqs": 2, "max_num_batched_tokens": 5}
    engine = LLM(model, recorder=recorder, **tight)
    engine.generate(["a b c d", "e", "f g"], SamplingParams(max_tokens=3, seed=1), use_tqdm=False)
    recorder.close()
    steps = read_trace(trace)
    assert len(steps.plans) == len(steps.digests) == len(statistics.read_text().splitlines())
    fresh = LLM(model, **tight)
    assert set(replay(steps, fresh.runner)) == {None}
    other = LLM(model, load_format="dummy", **tight)
    assert set(replay(steps, other.runner)) != {None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "unknown option.*colour"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2"),
        ({"speculative_config": {"method": "eagle"}}, "method 'eagle'"),
        ({"speculative_config": {"num_speculative_tokens": 6}}, "proposes 5"),
        ({"speculative_config": {"num_speculative_tokens": -1}}, "num_speculative_tokens -1"),
        ({"speculative_config": {"model": "x"}}, "unknown key.*model"),
        ({"decoder_replay": "some"}, "decoder_replay 'some'"),
        ({"decoder_replay": "off", "decoder_keep": 200}, "no choice"),
        ({"window_snapshot_bytes": -1}, "window_snapshot_bytes -1"),
        ({"max_model_len": 0}, "max_model_len 0"),
        ({"max_model_len": 10**9}, "positions"),
        ({"kv_cache_memory_bytes": 1000}, "do not hold one request"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization 1.5"),
        ({"policy": "fast"}, "policy 'fast'"),
        ({"numerics": "fp16"}, "numerics 'fp16'"),
        ({"decoder_keep": 3}, "decoder_keep 3"),
        ({"ops": {"experts": "magic"}}, "cannot use 'magic'"),
        ({"ops": {"magic": "reference"}}, "unknown operation"),
    ],
)
def test_options_that_cannot_be_met_are_refused_by_name(model, options, message):
    with pytest.raises(DeepinferError, match=message):
        LLM(model, **SMALL | options)


def test_options_that_say_what_is_done_anyway_are_taken(model):
    LLM(model, tensor_parallel_size=1, enable_prefix_caching=False, dtype="auto", **SMALL)


def test_a_closed_engine_says_so(model):
    with LLM(model, **SMALL) as engine:
        assert engine.generate("a", SHORT, use_tqdm=False)[0].error is None
    with pytest.raises(DeepinferError, match="closed"):
        engine.generate("a", SHORT)
    with pytest.raises(DeepinferError, match="closed"):
        engine.chat([{"role": "user", "content": "a"}])


def test_a_bug_ends_the_engine_loudly(model, monkeypatch):
    engine = LLM(model, **SMALL)
    monkeypatch.setattr(engine.runner, "sample", lambda number: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.generate("a", SHORT, use_tqdm=False)
    with pytest.raises(DeepinferError, match="ended with ZeroDivisionError"):
        engine.generate("a", SHORT, use_tqdm=False)


def test_a_prompt_that_came_before_is_not_computed_again_and_answers_the_same(model):
    prompt: Any = {"prompt_token_ids": list(range(10, 310))}
    mine: Any = {**prompt, "cache_salt": "mine"}
    empty: Any = {**prompt, "cache_salt": ""}
    options = {**SMALL, "max_model_len": 400}
    plain = LLM(model, **options, enable_prefix_caching=False)
    expected = plain.generate(prompt, SHORT, use_tqdm=False)[0].outputs
    with LLM(model, **options) as engine:
        first, second = (engine.generate(prompt, SHORT, use_tqdm=False)[0] for _ in range(2))
        salted = engine.generate(mine, SHORT, use_tqdm=False)[0]
        engine.reset_prefix_cache()
        fresh = engine.generate(prompt, SHORT, use_tqdm=False)[0]
        refused = engine.generate(empty, SHORT, use_tqdm=False)[0]
    assert [o.num_cached_tokens for o in (first, second, salted, fresh)] == [0, 128, 0, 0]
    assert all(o.outputs == expected for o in (first, second, salted, fresh))
    assert "cache_salt" in (refused.error or "")


def test_drafts_of_the_model_change_no_answer(model, llm):
    prompts = ["one two three", "a", "b c d e f g"]
    params = SamplingParams(max_tokens=8, temperature=0.7, seed=4, logprobs=2)
    expected = llm.generate(prompts, params, use_tqdm=False)
    with LLM(model, **SMALL, speculative_config={"num_speculative_tokens": 4}) as engine:
        found = engine.generate(prompts, params, use_tqdm=False)
        assert engine.get_metrics()["drafts_verified"] > 0
    assert [o.outputs for o in found] == [o.outputs for o in expected]
