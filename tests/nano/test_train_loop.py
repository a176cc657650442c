"""A run: how far it goes, what it leaves behind, and how it is taken up again."""

import itertools
import json

import pytest
import torch

from deepinfer.device import find_device
from deepinfer.nano.train import loop as room
from deepinfer.nano.train.loop import LOG, STATE, Loop, Plan
from tests.nano.test_train_network import LENGTH, packed
from tests.nano.test_train_parts import trainer


class Source:
    """Batches by number; remembers who asked for what."""

    def __init__(self):
        self.asked = []
        self.closed = 0

    def __call__(self, seed, rows, length, first, workers):
        assert (rows, length) == (2, LENGTH)
        self.asked.append((seed, first, workers))
        try:
            for number in itertools.count(first):
                yield packed(seed=number)
        finally:
            self.closed += 1


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock takes a quarter of a second."""
    ticks = itertools.count()
    monkeypatch.setattr(room.time, "perf_counter", lambda: next(ticks) / 4)
    monkeypatch.setattr(room, "length_of", lambda step, progress: LENGTH)
    monkeypatch.setattr(room, "LENGTHS", (LENGTH,))
    monkeypatch.setattr(room, "_LOG_EVERY", 2)


def make(out, source, seconds=2.0):
    plan = Plan(3, seconds, 2 * LENGTH, source, 0, ("only",), out)
    return Loop(plan, trainer(), find_device("cpu"))


def values(run):
    return torch.cat([group.values.flatten() for group in run.trainer.bank.groups])


def test_a_run_that_is_paused_goes_on_where_it_stopped(tmp_path, clock):
    source, calls = Source(), []
    first = make(tmp_path, source)
    assert not first.run(0.75, lambda: calls.append(first.step))
    first.save()
    assert (tmp_path / STATE).is_file()
    done = first.step
    assert done > 0
    second = make(tmp_path, source)
    assert not torch.equal(values(second), values(first))
    second.load(tmp_path)
    assert torch.equal(values(second), values(first))
    assert second.run(None, lambda: calls.append(second.step))
    assert second.step > done
    assert source.asked[0][1] == 0
    assert source.asked[1][1] == done  # no batch twice
    assert len(calls) == 1  # halfway
    first.close()
    second.close()
    assert source.closed == 2


def test_the_log_has_a_line_for_every_other_step_and_for_what_was_held_out(tmp_path, clock):
    source = Source()
    run = make(tmp_path, source, 1.5)
    run.rehearse()
    before = values(run)
    assert torch.equal(values(make(tmp_path, source)), before)  # rehearsing changes nothing
    assert run.run(None, lambda: None)
    run.measure(LENGTH)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [line["what"] for line in lines] == ["train"] * (run.step // 2) + ["held_out"] * 2
    assert all(0 <= line["right"]["only"] <= 1 for line in lines)
    seeds = {seed for seed, _, _ in source.asked}
    assert seeds == {3, 3 + room.HELD_OUT}
    assert len(run.calibrate(LENGTH)) == 5
