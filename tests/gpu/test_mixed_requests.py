"""500 mixed requests with aborts, drafts and too few pages: the tokens of the CPU.

Without quantisers, so that two devices differ by rounding alone: a token may differ only where two
of them are nearly as good. The CPU's answers are stored; a slow test computes some of them anew.
"""

import pytest

from deepinfer.engine.record import FileRecorder, Recorded, read_requests
from deepinfer.engine.rerun import rerun
from deepinfer.nano.build import nano_directory
from deepinfer.request import RequestOutput
from tests.gpu.mixed import COUNT, Answer, asked, by_cpu, engine, served, stored, unlike

NEAR = 2e-3  # nats: a change of log-probabilities that is rounding
FIXED = {"num_speculative_tokens": 3}
ADAPTIVE = {"num_speculative_tokens": 5, "policy": "adaptive"}


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return nano_directory(tmp_path_factory.mktemp("nano"))


@pytest.fixture(scope="module")
def on_device(gpu, nano, tmp_path_factory):
    """Results in captured steps with drafts, the counters, and the records of the requests."""
    trace = tmp_path_factory.mktemp("trace") / "trace"
    recorder = FileRecorder(trace, None)
    options = {"speculative_config": FIXED, "recorder": recorder}
    outputs, counters = served(nano, asked(COUNT), **options)
    recorder.close()
    return outputs, counters, read_requests(trace)


@pytest.mark.slow
def test_stored_answers_are_those_of_the_cpu():
    places = range(7, COUNT, 61)
    kept = stored()
    for place, found in zip(places, by_cpu([asked(COUNT)[i] for i in places]), strict=True):
        assert found._replace(logprobs=[], prompt=[]) == kept[place]._replace(
            logprobs=[], prompt=[]
        )
        assert found.logprobs == pytest.approx(kept[place].logprobs, abs=1e-5)


@pytest.mark.gpu
def test_everything_that_can_happen_to_a_request_happened(on_device):
    outputs, counters, _ = on_device
    assert all(output.error is None for output in outputs)
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert min(reasons.count(reason) for reason in ("stop", "length", "abort")) > 20
    assert counters["preemptions"] > 0
    assert counters["prompt_tokens_cached"] > 1000
    assert counters["drafts_accepted"] > 500
    ended = [output.outputs[0] for output in outputs if output.outputs[0].structured]
    assert len(ended) > 60
    assert not any(completion.violation for completion in ended)


class Differences:
    """How far a device is from the CPU's answers."""

    def __init__(self) -> None:
        self.drift = 0.0
        self.places: dict[int, int] = {}  # request: first other token

    def take(self, place: int, wanted: Answer, output: RequestOutput) -> None:
        """Compare one answer as far as its tokens are equal; an aborted one is a beginning."""
        (found,) = output.outputs
        pairs = zip(wanted.tokens, found.token_ids, strict=False)
        equal = [a == b for a, b in pairs]
        count = equal.index(False) if False in equal else len(equal)
        for i, (token, entries) in enumerate(
            zip(wanted.tokens[:count], found.logprobs or (), strict=False)
        ):
            self.drift = max(self.drift, abs(wanted.logprobs[i] - entries[token].logprob))
        if count < len(equal):
            self.places[place] = count
        elif found.finish_reason != "abort":
            assert wanted.text == found.text, place
            assert wanted.reason == found.finish_reason, place
        scores = zip(output.prompt_token_ids, output.prompt_logprobs or (), strict=False)
        scored = [entries[token].logprob for token, entries in scores if entries]
        assert scored == pytest.approx(wanted.prompt if scored else [], abs=NEAR), place


@pytest.mark.gpu
def test_tokens_are_those_of_the_cpu_up_to_near_ties(nano, on_device):
    outputs, _, records = on_device
    found, kept = Differences(), stored()
    for place, output in enumerate(outputs):
        found.take(place, kept[place], output)
    print(f"log-probabilities differ by up to {found.drift:.1e}; near ties: {found.places}")  # noqa: T201
    assert found.drift < NEAR
    assert len(found.places) < COUNT // 50
    if not found.places:
        return
    judge = engine(nano, "cpu", pages=400, enforce_eager=True).core
    for place, at in found.places.items():
        recorded: Recorded = records[str(place)]
        if not recorded.constrained:  # with the request's own penalties and biases
            verdict = rerun(judge, recorded, bound=NEAR)
            assert verdict.kind == "numerics", f"{place}: {verdict.reason}"
            continue
        entries = outputs[place].outputs[0].logprobs
        assert entries is not None
        other = outputs[place].outputs[0].token_ids[at]
        gap = abs(kept[place].logprobs[at] - entries[at][other].logprob)
        assert gap < 2 * NEAR, f"{place}: {gap} nats"


@pytest.mark.gpu
def test_direct_steps_with_other_drafts_give_the_same_bits(nano, on_device):
    some = asked(COUNT)[: COUNT // 6]
    outputs, _ = served(nano, some, enforce_eager=True, speculative_config=ADAPTIVE)
    assert unlike(on_device[0][: len(some)], outputs) == []
