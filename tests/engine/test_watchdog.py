"""A step that takes too long is named; an engine that dies answers everybody."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from deepinfer.engine.async_engine import AsyncEngine
from deepinfer.engine.jobs import AnswerFile, generated, parse_lines
from deepinfer.engine.llm import LLM
from deepinfer.engine.outputs import died, failed
from deepinfer.engine.watchdog import Watchdog, anonymous, describe
from deepinfer.errors import ConfigError, DeepinferError, RequestError
from deepinfer.nano.build import random_directory
from deepinfer.request import SamplingParams
from deepinfer.step import Admit, Prefill, RowSampling, StepPlan
from tests.engine.engines import run_all, service, some_prompts

SMALL: dict[str, Any] = {
    "device": "cpu",
    "kv_cache_memory_bytes": 64_000_000,
    "max_model_len": 200,
    "max_num_seqs": 8,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_directory(tmp_path_factory.mktemp("cache"))


class Ticks:
    now = 0.0

    def __call__(self):
        return self.now


class Killed(RuntimeError):
    pass


def values(max_tokens):
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)


def kill_after(runner, steps):
    """Make the runner fail in the middle of a later step."""
    honest = runner.sample

    def sample(number):
        if number == steps:
            raise Killed("the device is gone")
        honest(number)

    runner.sample = sample


def test_a_step_is_stuck_once_its_own_time_exceeds_the_limit():
    clock = Ticks()
    dog = Watchdog(10.0, clock=clock, start=False)
    assert dog.current() is dog.stuck() is None
    dog.begin(StepPlan(0, prefill=(Prefill(1, 0, 5, True),)))
    clock.now = 4
    dog.begin(StepPlan(1, decode_add=(1, 2), draft_budget=6))
    clock.now = 9
    assert "step 0 computes 5 prompt tokens in 1 slices, 0 decoding rows" in (dog.current() or "")
    dog.end(0)
    clock.now = 18.9
    assert dog.stuck() is None  # step 1 runs since 9
    clock.now = 19.5
    assert dog.stuck() == (
        "step 1 computes 0 prompt tokens in 0 slices, 2 decoding rows and up to 6 drafts, 8 tokens "
        "in all, for 10.5 s"
    )
    dog.end(1)
    assert dog.stuck() is None
    dog.begin(StepPlan(2, decode_remove=(2,)))
    assert "1 decoding rows" in (dog.current() or "")
    dog.close()
    assert dog.current() is None


def test_a_stuck_step_is_logged_once_and_tells_nothing_of_users(caplog):
    clock = Ticks()
    dog = Watchdog(1.0, clock=clock, start=False)
    secret = RowSampling(forced_token_ids=(424242,))
    admit = Admit(1, 1, (31337, 31338), 2, 0, 0, 0, 9, -1, (777777,), 8888888, 0, secret)
    plan = StepPlan(0, admit=(admit,), prefill=(Prefill(1, 0, 2, True),))
    dog.begin(plan)
    with caplog.at_level(logging.ERROR):
        dog.look()
        assert not caplog.records
        clock.now = 2
        dog.look()
        dog.look()
    (record,) = caplog.records
    text = record.getMessage()
    assert "step 0" in text
    assert '"prefill": [[1, 0, 2, true]]' in text
    assert not any(word in text for word in ("31337", "424242", "777777", "8888888"))
    assert describe(anonymous(plan), 0) == describe(plan, 0)


def test_the_thread_ends_with_the_engine(model):
    def running():
        return [t for t in threading.enumerate() if t.name == "deepinfer-watchdog"]

    before = len(running())
    with LLM(model, **SMALL, step_timeout_s=0.2) as engine:
        assert engine.generate("a", values(2), use_tqdm=False)[0].error is None
        assert len(running()) == before + 1
        (mine,) = running()[before:]
    mine.join(timeout=60)
    assert not mine.is_alive()


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_limits_that_are_none_are_refused(limit, tmp_path):
    with pytest.raises(ConfigError, match="step_timeout_s"):
        Watchdog(limit)
    with pytest.raises(ConfigError, match="step_timeout_s"):
        LLM(tmp_path, step_timeout_s=limit)


@pytest.mark.parametrize("overlap", [False, True])
def test_health_and_the_log_name_a_step_that_hangs_and_the_engine_goes_on(caplog, overlap):
    hanging = service(async_scheduling=overlap)
    go, hangs = threading.Event(), threading.Event()
    honest = hanging.core.runner.collect

    def collect(number):
        if number == 2:
            hangs.set()
            assert go.wait(60)
        return honest(number)

    hanging.core.runner.collect = collect
    engine = AsyncEngine(hanging, step_timeout_s=0.1)

    async def main():
        results = await engine.add("a", [9] * 5, values(6))
        assert await asyncio.to_thread(hangs.wait, 60)
        while not any("step 2 computes" in record.getMessage() for record in caplog.records):
            await asyncio.sleep(0.01)
        assert "step 2 computes" in (engine.health().stuck or "")
        assert engine.health().state == "running"
        go.set()
        while not (output := await results.get()).finished:
            pass
        return output

    with caplog.at_level(logging.ERROR):
        output = asyncio.run(asyncio.wait_for(main(), 60))
    assert output.error is None
    assert len(output.outputs[0].token_ids) == 6
    assert engine.health().stuck is None
    engine.close()


def cut_short(output, whole):
    """How many tokens an answer has that an engine's death ended: the first ones of the whole."""
    assert output.prompt_token_ids == whole.prompt_token_ids
    (part,), (all_of_it,) = output.outputs, whole.outputs
    assert part.finish_reason == "error"
    assert part.token_ids == all_of_it.token_ids[: len(part.token_ids)]
    assert len(part.token_ids) < len(all_of_it.token_ids)
    assert part.text == "" or all_of_it.text.startswith(part.text.rstrip("\ufffd"))
    assert part.seed == all_of_it.seed
    return len(part.token_ids)


def test_a_device_that_dies_amid_twenty_requests_leaves_no_stream_without_an_answer(caplog):
    prompts = some_prompts(20)
    params = [values(2 + i % 7) for i in range(20)]
    expected = run_all(service(), prompts, params)
    dying = service(async_scheduling=True)
    kill_after(dying.core.runner, 9)
    engine = AsyncEngine(dying)

    async def last(i):
        return [output async for output in engine.stream(str(i), prompts[i], params[i])][-1]

    async def main():
        outputs = await asyncio.gather(*(last(i) for i in range(20)))
        with pytest.raises(RequestError, match="the device is gone") as late:
            await engine.add("late", [9], params[0])
        assert late.value.status == 503
        return outputs

    with caplog.at_level(logging.ERROR):
        outputs = asyncio.run(asyncio.wait_for(main(), 60))
    good = [i for i, output in enumerate(outputs) if output.error is None]
    assert 0 < len(good) < 20
    partly = []
    for i, output in enumerate(outputs):
        assert output.finished
        if i in good:
            assert output.outputs[0].token_ids == expected[i].outputs[0].token_ids
        else:
            assert output.error == "the engine died: Killed: the device is gone"
            partly.append(cut_short(output, expected[i]))
    assert any(partly)
    health = engine.health()
    assert (health.state, health.requests) == ("dead", 0)
    assert health.error == "Killed: the device is gone"
    (record,) = caplog.records
    # Step 9 was begun and step 8 is the oldest that is not collected.
    assert "oldest step not collected: step 8 computes" in record.getMessage()
    assert record.exc_info
    engine.close()


def jobs():
    prompts: list[Any] = [{"prompt_token_ids": [20 + i] * (3 + i % 6)} for i in range(20)]
    params = [values(1 + i % 5) for i in range(20)]
    return prompts, params


def test_a_batch_keeps_what_was_finished_when_the_engine_dies(model, caplog):
    prompts, params = jobs()
    expected = LLM(model, **SMALL).generate(prompts, params, use_tqdm=False)
    engine = LLM(model, **SMALL, step_timeout_s=600)
    kill_after(engine.runner, 5)
    told: dict[int, object] = {}

    def tell(place, output):
        assert place not in told
        told[place] = output

    with caplog.at_level(logging.ERROR):
        outputs = engine.generate(prompts, params, use_tqdm=False, on_output=tell)
    assert told == dict(enumerate(outputs))
    partly = []
    good = [i for i, output in enumerate(outputs) if output.error is None]
    assert 0 < len(good) < 20
    for i, output in enumerate(outputs):
        assert output.finished
        if i in good:
            assert output.outputs == expected[i].outputs
        else:
            assert output.error == "the engine died: Killed: the device is gone"
            partly.append(cut_short(output, expected[i]))
    assert any(partly)
    (record,) = caplog.records
    assert record.exc_info
    with pytest.raises(DeepinferError, match="ended with Killed"):
        engine.generate("a", use_tqdm=False)


def test_where_nothing_is_lost_the_failure_itself_is_raised(model):
    prompts, params = jobs()
    engine = LLM(model, **SMALL)
    kill_after(engine.runner, 0)
    with pytest.raises(Killed):
        engine.generate(prompts, params, use_tqdm=False)


def test_a_bug_of_the_listener_is_the_callers_and_the_engine_goes_on(model):
    prompts, params = jobs()
    engine = LLM(model, **SMALL)

    def listen(place, output):
        raise KeyError("listener")

    with pytest.raises(KeyError, match="listener"):
        engine.generate(prompts, params, use_tqdm=False, on_output=listen)
    assert engine.generate(prompts[0], params[0], use_tqdm=False)[0].error is None


def test_a_batch_job_asks_again_what_a_dead_engine_left_open(tmp_path):
    (job, other) = parse_lines(['{"prompt": "a"}', '{"prompt": "b"}'], values(4))
    path = tmp_path / "answers.jsonl"
    file = AnswerFile(path, resume=False)
    file.write(generated(job, died("0", "a", Killed("gone"))))
    file.write(generated(other, failed("1", "b", "the prompt is bad")))
    file.close(ordered=True)
    assert "Killed: gone" in path.read_text()
    again = AnswerFile(path, resume=True)
    assert [again.done(job), again.done(other)] == [False, True]
    again.close(ordered=True)
    assert len(path.read_text().splitlines()) == 1
