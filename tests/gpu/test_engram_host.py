"""N-gram tables in host memory: the device reads their rows itself, in captured steps too."""

import pytest
import torch

from deepinfer.bench.end_to_end import mini_arch
from deepinfer.bench.slices import slice_network
from deepinfer.bench.step import Bed, Driver
from deepinfer.device import find_device, mapped, no_sync
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_table import open_table
from tests.model.tiny import tiny_arch

pytestmark = pytest.mark.gpu
STEPS = 4


def test_memory_of_the_host_is_seen_without_a_copy(gpu):
    host = torch.arange(256, dtype=torch.int64).to(torch.uint8).repeat(4096).view(-1, 64)
    seen = mapped(host, gpu.device)
    assert seen.device.type == "cuda"
    assert torch.equal(seen.cpu(), host)
    host[5] = 77  # nothing was copied
    assert seen[5].tolist() == [77] * 64
    assert mapped(host.clone(), torch.device("cpu")).device.type == "cpu"


@pytest.mark.parametrize("shape", [(), (3,), (64, 24)])
def test_rows_are_those_of_a_table_on_the_device(gpu, shape):
    source = DummySource(tiny_arch(), 2)  # rows of 64 codes and 2 scales
    tables = {where: open_table(source, 1, where, gpu.device) for where in ("host", "device")}
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 211, shape, generator=generator).to(gpu.device)
    with no_sync(gpu.device):
        found, wanted = (tables[where].fetch(rows) for where in ("host", "device"))
    for one, other in zip(found, wanted, strict=True):
        assert one.device == other.device
        assert torch.equal(one, other)
    assert found[0].shape == (*shape, 64)


def test_steps_have_the_same_bits_captured_and_directly(gpu):
    device, arch = find_device("cuda"), mini_arch()
    there, here = (slice_network(arch, device, {}, engram=where) for where in ("host", "device"))
    assert there.graph_obstacles() == []
    found = [
        [
            logits.clone()
            for logits, _ in Driver(Bed(net, device, 300), range(1, 5), graphs).checked(STEPS)
        ]
        for net, graphs in ((here, None), (there, None), (there, device.graphs()))
    ]
    for steps in found[1:]:
        for one, other in zip(steps, found[0], strict=True):
            assert torch.equal(one, other)
