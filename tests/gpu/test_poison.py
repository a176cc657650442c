"""NaN bytes in all memory that nobody owns, before every step and every replay, change no bit."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.device import Graphs, find_device
from deepinfer.model.load import LoadOptions, load_network
from deepinfer.nano.build import nano_directory
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.runner import TorchRunner
from deepinfer.step import StepMasks, StepPlan, StepResult
from tests.runner.test_graphs import KINDS
from tests.runner.twins import LIMITS, Twins, runner, serve

pytestmark = pytest.mark.gpu
NAN = 255  # a NaN in bf16, fp32, float64, E4M3 and E8M0


def spoil(device: torch.device) -> list[Tensor]:
    """Blocks of many sizes full of NaN, which the allocator gives out again when they are freed."""
    sizes = [1 << 28, *[1 << 24] * 4, *[1 << 19] * 64]
    return [torch.full((size,), NAN, dtype=torch.uint8, device=device) for size in sizes]


class Spoiling:
    """Graphs that spoil what they may use of the shared memory before each replay."""

    def __init__(self, graphs: Graphs, device: torch.device):
        self.graphs, self.device, self.replays = graphs, device, 0

    def capture(self, run: Callable[[], Any]) -> tuple["Both", Any]:
        def fill() -> None:
            spoil(self.device)

        before, _ = self.graphs.capture(fill)  # its blocks are free for the next capture
        graph, outputs = self.graphs.capture(run)
        return Both(before, graph, self), outputs


class Both:
    def __init__(self, before: Any, graph: Any, owner: Spoiling):
        self.before, self.graph, self.owner = before, graph, owner

    def replay(self) -> None:
        self.before.replay()
        self.graph.replay()
        self.owner.replays += 1


class Poisoned:
    """A runner whose free pages, free slots and free memory are spoilt before every step."""

    def __init__(self, made: TorchRunner):
        self.made, self.pages = made, 0

    @property
    def captures(self) -> Any:
        return self.made.captures

    def forward(self, plan: StepPlan) -> None:
        made = self.made
        live = sorted(set(made._admitted) - set(plan.release))
        for pool, owned in (
            (made.state.pages, made.rows.pages[live]),
            (made.state.slots, made.rows.slot[live]),
        ):
            free = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
            free[owned.flatten()] = False
            free[0] = True
            pool[free] = NAN
            self.pages += int(free.sum())
        spoil(made.device)
        made.forward(plan)

    def sample(self, number: int, masks: StepMasks | None = None) -> None:
        spoil(self.made.device)
        self.made.sample(number, masks)

    def draft(self, number: int) -> None:
        spoil(self.made.device)
        self.made.draft(number)

    def collect(self, number: int) -> StepResult:
        return self.made.collect(number)


def prompts(count: int) -> list[list[int]]:
    lengths = (3, 120, 1, 127, 40, 100, 128, 12, 60, 5, 250, 33)
    generator = torch.Generator().manual_seed(2)
    return [
        torch.randint(10, 900, (lengths[i % len(lengths)],), generator=generator).tolist()
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return nano_directory(tmp_path_factory.mktemp("nano"))


@pytest.mark.parametrize(
    ("numerics", "captured"), [("checkpoint", False), ("checkpoint", True), ("noquant", True)]
)
def test_spoilt_free_memory_changes_no_bit(gpu, nano, numerics, captured):
    net = load_network(nano, gpu.device, gpu.arch, LoadOptions(numerics=numerics))
    limits = dataclasses.replace(LIMITS, max_draft=3, num_pages=12)
    graphs = Spoiling(find_device("cuda").graphs(), gpu.device) if captured else None
    plain = runner(net, limits, None, DraftStages(net, 3))
    spoilt = Poisoned(runner(net, limits, graphs, DraftStages(net, 3)))
    twins: Any = Twins(plain, spoilt)  # pyright: ignore[reportArgumentType]
    params = [KINDS[i % len(KINDS)] for i in range(14)]
    found = serve(net, twins, limits, prompts(14), params, ahead=True, late=5)
    assert all(output.error is None for output in found)
    assert twins.compared > 20
    assert spoilt.pages > 100
    assert graphs is None or graphs.replays > 20
