"""Adaptive numbers of drafts in the engine: options, times measured at the start, equal answers."""

import dataclasses

import pytest
import torch

from deepinfer.engine.options import EngineOptions, options_from
from deepinfer.engine.profile import profile
from deepinfer.engine.speculative import Speculative, calibrated, speculative
from deepinfer.errors import ConfigError
from deepinfer.request import SamplingParams
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.runner import Proposal, TorchRunner
from deepinfer.scheduler import Drafting
from tests.engine.engines import LIMITS, core, run_all, service, some_prompts
from tests.model.networks import network

PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=1),
    SamplingParams(seed=3, temperature=0.8, max_tokens=17, ignore_eos=True, logprobs=1),
    SamplingParams(seed=4, top_k=5, max_tokens=9, repetition_penalty=1.3, logprobs=1),
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1),
]
ADAPTIVE = dataclasses.replace(LIMITS, max_draft=3, drafting=Drafting(adaptive=True))


class Repeats:
    """Drafts that repeat the last tokens, confident at random."""

    graph_safe = True

    def seed(self, forward, state):
        pass

    def propose(self, rows, groups, state, drawing):
        back = rows.length[groups].unsqueeze(1) - 3 + torch.arange(3)
        tokens = rows.tokens[groups.unsqueeze(1), back.clamp(min=0)]
        return Proposal(tokens, (tokens % 7).to(torch.float32) - 3)


@pytest.mark.parametrize("ahead", [False, True])
def test_adaptive_drafts_change_no_answer(ahead):
    prompts = some_prompts(len(PARAMS))
    expected = run_all(service(), prompts, PARAMS)
    budgets = []
    engine = service(limits=ADAPTIVE, async_scheduling=ahead, proposer=Repeats())
    runner = engine.core.runner
    forward = runner.forward

    def seen(plan):
        budgets.append(plan.draft_budget)
        forward(plan)

    runner.forward = seen
    found = run_all(engine, prompts, PARAMS)
    assert [output.outputs for output in found] == [output.outputs for output in expected]
    assert len(set(budgets)) > 2
    counters = engine.core.scheduler.snapshot()
    metrics = [output.metrics for output in found]
    assert sum(m.drafts_verified for m in metrics if m) == counters.drafts_verified > 0
    assert sum(counters.drafts_verified_at) == counters.drafts_verified
    assert counters.drafts_scheduled == sum(budgets)


def test_measured_steps_leave_nothing_behind_and_respect_their_time():
    net = network()
    limits = dataclasses.replace(ADAPTIVE, max_num_batched_tokens=12)
    engine = core(net, limits, proposer=DraftStages(net, 3))
    assert isinstance(engine.runner, TorchRunner)
    ticks = iter(range(1000))
    count = profile(engine.scheduler, engine.runner, 15, lambda: float(next(ticks)))
    assert 10 < count < 15
    curve = engine.scheduler.speculation.plain
    assert curve.known
    assert all(curve.times(tokens) >= 3 for tokens in (1, 2, 3, 4))
    assert profile(engine.scheduler, engine.runner, 1e9, lambda: 0.0) > 30
    assert curve.times(12) >= 3
    prompts = some_prompts(len(PARAMS))
    fresh = run_all(service(), prompts, PARAMS)
    measured = service(limits=limits, proposer=DraftStages(net, 3))
    runner = measured.core.runner
    assert isinstance(runner, TorchRunner)
    profile(measured.core.scheduler, runner, 1e9, lambda: 0.0)
    assert [o.outputs for o in run_all(measured, prompts, PARAMS)] == [o.outputs for o in fresh]
    assert measured.core.scheduler.snapshot().steps > 0


def test_speculative_config_says_how_many_who_chooses_and_what_is_known():
    assert speculative(None) == Speculative()
    assert speculative({}) == Speculative(3)
    assert speculative({"policy": "off", "num_speculative_tokens": 4}).tokens == 0
    everything = {
        "method": "dspark",
        "num_speculative_tokens": 5,
        "policy": "adaptive",
        "temperature": [1, 2.5],
        "profile_seconds": 2,
        "verification": "block",
    }
    assert speculative(everything) == Speculative(5, Drafting(True, (1.0, 2.5)), 2.0, "block")
    loose = EngineOptions(speculative_config=everything, deterministic=False)
    assert loose.speculative().tokens == 5


def test_a_model_brings_its_start_temperatures_unless_the_caller_names_some(tmp_path):
    assert calibrated(tmp_path, {"policy": "adaptive"}) == {"policy": "adaptive"}
    path = tmp_path / "calibration.json"
    path.write_text('{"temperature": [1.5, 2]}')
    assert calibrated(tmp_path, None) is None
    assert calibrated(tmp_path, {}) == {"temperature": [1.5, 2]}
    assert speculative(calibrated(tmp_path, {})).drafting.temperature == (1.5, 2)
    assert calibrated(tmp_path, {"temperature": 3}) == {"temperature": 3}
    for wrong in ("{", "[]", "{}"):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="calibration.json"):
            calibrated(tmp_path, {})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"policy": "greedy"}, "policy 'greedy'"),
        ({"temperature": 0}, "temperature 0"),
        ({"temperature": []}, "temperature"),
        ({"temperature": [1, "2"]}, "temperature"),
        ({"verification": "block"}, "'block'.*deterministic=False"),
        ({"verification": "exact"}, "verification 'exact'"),
        ({"profile_seconds": -1}, "profile_seconds -1"),
        ({"profile_seconds": float("nan")}, "profile_seconds nan"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens True"),
        ({"method": "ngram"}, "method 'ngram'"),
        ({"budget": 1}, "unknown key.*budget"),
    ],
)
def test_what_speculative_config_cannot_mean_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        EngineOptions(speculative_config=config)


def test_the_environment_fills_what_the_argument_leaves_open(monkeypatch):
    monkeypatch.setenv("DEEPINFER_ENABLE_MTP_VARLEN", "1")
    monkeypatch.setenv("DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "2")
    assert options_from({}).speculative() == Speculative(5, Drafting(True, (2.0,)))
    given = options_from({"speculative_config": {"num_speculative_tokens": 2, "temperature": 1.5}})
    assert given.speculative() == Speculative(2, Drafting(True, 1.5))
    fixed = options_from({"speculative_config": {"policy": "fixed"}})
    assert fixed.speculative().drafting.adaptive is False
