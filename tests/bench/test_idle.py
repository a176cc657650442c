"""The measurement of gaps between steps: its arithmetic, its closed loop, its records."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.bench import idle
from deepinfer.bench.idle import Load, Step
from deepinfer.cli import main
from deepinfer.device import Event, find_device
from deepinfer.engine.build import load
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.nano.build import random_directory
from deepinfer.runner.runner import TorchRunner

SMALL = Load(requests=2, prompt=(5, 20), output=(2, 5))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    directory = random_directory(tmp_path_factory.mktemp("cache"))
    return load(directory, find_device("cpu"), EngineOptions(device="cpu"))


def mark(seconds):
    event = Event(torch.device("cpu"))
    event._seconds = seconds
    return event


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.booleans()), min_size=2))
def test_gaps_and_steps_add_up_to_the_time_of_all(drawn):
    now, steps = 0, []
    for gap, length, prompt in drawn:
        steps.append(Step(mark(now + gap), mark(now + gap + length), prompt))
        now += gap + length
    found = idle.gaps(steps)
    lost = sum(gap for gap, _, _ in drawn[1:])
    assert found["idle"] == pytest.approx(lost / (now - drawn[0][0]))
    assert found["decode_steps"] + found["prompt_steps"] == found["steps"] - 1 == len(drawn) - 1
    parts = [found.get(f"{kind}_idle", 0) for kind in ("decode", "prompt")]
    assert sum(parts) == pytest.approx(found["idle"])


def test_medians_are_told_for_each_kind_of_step():
    marks = [(0, 2, False), (3, 4, True), (9, 12, False), (13, 15, False)]
    found = idle.gaps([Step(mark(a), mark(b), prompt) for a, b, prompt in marks])
    assert (found["decode_ms"], found["decode_gap_ms"]) == (2500, 1000)
    assert (found["prompt_ms"], found["prompt_gap_ms"]) == (1000, 5000)


def test_both_ways_serve_the_whole_load_with_every_place_taken(network, monkeypatch, capsys):
    seen, honest_add, honest_collect = [], Service.add, TorchRunner.collect
    tokens = {}

    def add(self, request_id, prompt, params, **kwargs):
        honest_add(self, request_id, prompt, params, **kwargs)
        seen.append((self.core.async_scheduling, params.max_tokens, self.num_requests))

    def collect(self, number):
        result = honest_collect(self, number)
        tokens[id(self)] = tokens.get(id(self), 0) + int(result.generated.sum())
        return result

    monkeypatch.setattr(Service, "add", add)
    monkeypatch.setattr(TorchRunner, "collect", collect)
    records = idle.run(network, "nano", [3], SMALL, json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == records
    wanted = [count for _, count in SMALL.drawn(3)]
    assert [count for _, count, _ in seen] == 4 * wanted  # each way once for nothing, once measured
    assert [ahead for ahead, _, _ in seen] == [False] * 12 + [True] * 12
    for start in range(0, 24, 6):
        places = [at for _, _, at in seen[start : start + 6]]
        assert places[:3] == [1, 2, 3]
        assert max(places) == 3
    assert list(tokens.values()) == [4 * sum(wanted)]
    synchronous, ahead, both = records
    assert [record["name"] for record in records] == [
        *("idle rows 3 synchronous", "idle rows 3 ahead", "idle rows 3")
    ]
    for record in (synchronous, ahead):
        assert 0 < record["idle"] < 1
        assert record["prompt_steps"] >= 2
        assert record["decode_steps"] > 0
    assert both["idle"] == ahead["idle"]
    assert both["ratio"] == pytest.approx(synchronous["idle"] / ahead["idle"])


def test_a_slice_needs_a_gpu_and_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for suite in ("idle", "step"):
        assert main(["bench", suite, "--rows", "8"]) == 2
        assert "this machine shows 0 GPU(s)" in capsys.readouterr().err
