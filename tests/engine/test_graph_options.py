"""Which steps an engine captures: those asked for, where device and operations allow it."""

import dataclasses

import pytest

from deepinfer.device import Device, find_device
from deepinfer.engine.build import build_core, graph_obstacles
from deepinfer.engine.options import EngineOptions, options_from
from deepinfer.errors import ConfigError
from deepinfer.model import engram_table
from tests.model.networks import network
from tests.runner.recorded import RecordedGraphs
from tests.runner.twins import LIMITS, capturable

CPU = find_device("cpu")


@pytest.fixture
def with_graphs(monkeypatch):
    """A CPU that pretends to have graphs."""
    monkeypatch.setattr(engram_table, "_check_rows", lambda rows, count: None)
    monkeypatch.setattr(Device, "has_graphs", property(lambda device: True))
    monkeypatch.setattr(Device, "graphs", lambda device: RecordedGraphs())


def test_sizes_reach_the_number_of_requests_and_lie_closer_at_the_start():
    assert EngineOptions(max_num_seqs=1).graph_sizes() == (1,)
    assert EngineOptions(max_num_seqs=20).graph_sizes() == (1, 2, 4, 8, 16, 20)
    assert EngineOptions(max_num_seqs=256).graph_sizes()[-3:] == (160, 192, 256)
    assert EngineOptions(max_num_seqs=2000).graph_sizes()[-1] == 2000
    assert EngineOptions(enforce_eager=True).graph_sizes() == ()
    assert options_from({"cudagraph_capture_sizes": [1, 6]}).graph_sizes() == (1, 6)


@pytest.mark.parametrize("sizes", [[0], [2, 2], [4, 1], [1.5]])
def test_other_sizes_are_refused(sizes):
    with pytest.raises(ConfigError, match="cudagraph_capture_sizes"):
        EngineOptions(cudagraph_capture_sizes=sizes)


def test_every_reason_against_graphs_is_named(with_graphs):
    assert graph_obstacles(capturable("checkpoint"), CPU, EngineOptions()) == []
    asked = graph_obstacles(capturable("checkpoint"), CPU, EngineOptions(enforce_eager=True))
    assert asked == ["asked for"]
    found = graph_obstacles(network("checkpoint"), CPU, EngineOptions())
    assert found == ["experts: reference is not graph-safe"]


def test_a_cpu_has_no_graphs_and_its_plans_ask_for_none():
    assert graph_obstacles(network("checkpoint"), CPU, EngineOptions()) == ["CPU has no graphs"]
    core = build_core(network("checkpoint"), LIMITS, EngineOptions(device="cpu"))
    assert core.scheduler.limits.graph_sizes == ()
    with pytest.raises(ConfigError, match="no graphs"):
        CPU.graphs()


def test_plans_ask_for_the_sizes_that_the_runner_captures(with_graphs):
    options = EngineOptions(device="cpu", max_num_seqs=3)
    limits = dataclasses.replace(LIMITS, max_num_seqs=3, graph_sizes=())
    core = build_core(capturable("checkpoint"), limits, options)
    assert core.scheduler.limits.graph_sizes == (1, 2, 3)
