"""The engine behind event loops: streams, aborts, draining, and what happens when it dies."""

import asyncio

import pytest

from deepinfer.engine.async_engine import AsyncEngine
from deepinfer.errors import RequestError
from deepinfer.request import SamplingParams
from tests.engine.engines import run_all, service, some_prompts

LONG = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)


@pytest.fixture
def engine():
    made = AsyncEngine(service(async_scheduling=True), max_queued=6)
    yield made
    made.close()


async def last(engine, name, prompt, params=LONG):
    return [output async for output in engine.stream(name, prompt, params)][-1]


def test_streams_grow_and_end_with_the_offline_answers(engine):
    prompts = some_prompts(5)
    expected = run_all(service(), prompts, [LONG] * 5)

    async def collect(i):
        lengths = []
        async for output in engine.stream(str(i), prompts[i], LONG):
            lengths.append(len(output.outputs[0].token_ids))
        assert lengths == sorted(lengths)
        assert len(lengths) > 3
        return output

    async def main():
        return await asyncio.gather(*(collect(i) for i in range(5)))

    for output, offline in zip(asyncio.run(main()), expected, strict=True):
        assert output.outputs[0].token_ids == offline.outputs[0].token_ids
    # Another event loop, the same engine.
    assert asyncio.run(last(engine, "again", prompts[0])).finished


def test_bad_input_is_refused_where_it_enters(engine):
    async def main():
        for name, prompt, status in (("a", [], 400), ("b", [10**6], 400), ("c", "text", 400)):
            with pytest.raises(RequestError) as caught:
                await engine.add(name, prompt, LONG)
            assert caught.value.status == status
        await engine.add("same", [9, 9], LONG)
        with pytest.raises(RequestError) as caught:
            await engine.add("same", [9, 9], LONG)
        assert caught.value.status == 409

    asyncio.run(main())


def test_a_full_queue_pushes_back(engine):
    async def main():
        queues = [await engine.add(str(i), [9] * 20, LONG) for i in range(6)]
        with pytest.raises(RequestError) as caught:
            await engine.add("seventh", [9], LONG)
        assert caught.value.status == 429
        for results in queues:
            while not (await results.get()).finished:
                pass
        await engine.add("seventh", [9], LONG)

    asyncio.run(main())


def test_an_abort_and_a_reader_that_leaves_end_the_work(engine):
    forever = SamplingParams(max_tokens=180, temperature=0, ignore_eos=True)

    async def main():
        results = await engine.add("one", [9] * 5, forever)
        await results.get()
        engine.abort("one")
        while not (output := await results.get()).finished:
            pass
        assert output.outputs[0].finish_reason == "abort"
        async for _output in engine.stream("two", [9] * 5, forever):
            break
        assert await engine.drain(timeout=60)

    asyncio.run(main())
    assert engine.health().requests == 0


def test_draining_finishes_what_runs_and_takes_nothing_new(engine):
    async def main():
        task = asyncio.create_task(last(engine, "a", [9] * 8))
        await asyncio.sleep(0.05)
        assert await engine.drain(timeout=60)
        assert (await task).outputs[0].finish_reason == "length"
        with pytest.raises(RequestError) as caught:
            await engine.add("b", [9], LONG)
        assert caught.value.status == 503

    asyncio.run(main())
    assert engine.health().state == "draining"


def test_a_bug_answers_everybody_and_refuses_the_rest():
    broken = service()
    engine = AsyncEngine(broken)
    calls = 0
    honest = broken.core.runner.sample

    def sample(number, masks=None):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise ZeroDivisionError("a bug")
        honest(number)

    broken.core.runner.sample = sample

    async def main():
        outputs = await asyncio.gather(*(last(engine, str(i), [9] * 5) for i in range(3)))
        assert all("ZeroDivisionError" in (output.error or "") for output in outputs)
        with pytest.raises(RequestError) as caught:
            await engine.add("late", [9], LONG)
        assert caught.value.status == 503

    asyncio.run(asyncio.wait_for(main(), 60))
    health = engine.health()
    assert health.state == "dead"
    assert "a bug" in (health.error or "")
    engine.close()
