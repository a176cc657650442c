"""What an engine does before its first request: the step it measures, and what that leaves."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.cache import pages_for
from deepinfer.device import find_device
from deepinfer.engine import warm
from deepinfer.engine.build import build_around
from deepinfer.engine.options import EngineOptions
from deepinfer.errors import ConfigError
from deepinfer.request import SamplingParams
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.runner import TorchRunner
from deepinfer.scheduler import Limits
from tests.engine.engines import LIMITS, core, run_all, service, some_prompts
from tests.model.networks import network

CPU = find_device("cpu")
# A CPU that says its memory is its own, as a GPU does.
OWN = dataclasses.replace(CPU, memory_bytes=1 << 30)


@st.composite
def limits(draw):
    seqs, longest = draw(st.integers(1, 6)), draw(st.integers(2, 700))
    pages = pages_for(longest, 128) + draw(st.integers(0, 12))
    return Limits(pages, seqs + 1, longest, draw(st.integers(seqs, 2000)), seqs)


@given(limits())
def test_the_largest_step_is_within_all_limits_and_one_of_them_is_reached(drawn):
    plan = warm.largest_step(drawn)
    lengths = [piece.length for piece in plan.prefill]
    assert sum(lengths) <= drawn.max_num_batched_tokens
    assert all(0 < length < drawn.max_model_len for length in lengths)
    assert len(lengths) == len(plan.admit) <= drawn.max_num_seqs
    used = [item.page for item in plan.pages]
    assert sorted(used) == list(range(1, len(used) + 1))
    assert len(used) <= drawn.num_pages
    for row, length in enumerate(lengths, 1):
        own = [item for item in plan.pages if item.row == row]
        assert [place for _, place, _ in own] == list(range(pages_for(length + 1, 128)))
    assert plan.max_len_hi == max(lengths) + 1
    left = drawn.max_num_batched_tokens - sum(lengths)
    another = pages_for(min(drawn.max_model_len, left + 1), 128)
    assert left == 0 or len(lengths) == drawn.max_num_seqs or len(used) + another > drawn.num_pages


def test_the_measured_step_leaves_nothing_behind():
    bounds = dataclasses.replace(LIMITS, max_draft=3, max_num_batched_tokens=300)
    params = [
        SamplingParams(temperature=0.7 * (i % 2), seed=i, max_tokens=9, logprobs=1)
        for i in range(5)
    ]
    prompts, results = some_prompts(5), []
    for measured in (False, True):
        engine = service(limits=bounds, proposer=DraftStages(network(), 3))
        runner = engine.core.runner
        assert isinstance(runner, TorchRunner)
        if measured:
            assert warm.measure(runner, bounds, CPU) == (300, 0)
        results.append([output.outputs for output in run_all(engine, prompts, params)])
    assert results[0] == results[1]


def test_a_step_that_does_not_fit_is_an_error_that_says_what_to_lower(monkeypatch):
    engine = core(network())

    def full(self, plan):
        raise torch.OutOfMemoryError("3 GiB wanted")

    monkeypatch.setattr(TorchRunner, "forward", full)
    with pytest.raises(ConfigError, match="24 tokens .*max_num_batched_tokens.*3 GiB wanted"):
        warm.warm_up(engine, OWN, EngineOptions(device="cpu"), measured=True)


def test_the_memory_plan_tells_what_was_measured(monkeypatch):
    monkeypatch.setattr(warm, "measure", lambda runner, limits, device: (77, 1_230_000_000))
    options = EngineOptions(
        device="cpu", max_model_len=256, max_num_seqs=2, kv_cache_memory_bytes=1 << 24
    )
    lines = []
    for device in (CPU, OWN):
        monkeypatch.setattr("deepinfer.engine.build.find_device", lambda wish, own=device: own)
        for measured in (False, True):
            built = build_around(network(), options, model=b"", measured=measured)
            found = (*built.memory.lines(), *built.phases)
            lines.append([line for line in found if "77 tokens" in line])
    assert lines[:3] == [[], [], []]
    assert lines[3][0].startswith("measured: workspace of a step of 77 tokens 1.23 GB, captured")
    assert "a step of 77 tokens" in lines[3][1]
