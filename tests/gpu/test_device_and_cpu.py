"""Every operation, and whole networks, without quantisers: the numbers of the CPU on the device."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.arch import load_arch
from deepinfer.model.dummy import DummySource
from deepinfer.model.load import LoadOptions, load_network
from deepinfer.model.network import Network
from deepinfer.model.numerics import NOQUANT
from deepinfer.model.operations import OPS, Operations
from deepinfer.model.state import State
from deepinfer.model.weights import WeightLoader
from deepinfer.nano.build import nano_directory
from deepinfer.ops.cases import Maker
from deepinfer.ops.sample import sample
from deepinfer.runner.assemble import RowSlice
from tests.gpu.every_kernel import packed
from tests.gpu.networks import small
from tests.model.networks import hash_map, run
from tests.ops.small import SMALL, TWO_STREAMS

pytestmark = pytest.mark.gpu
SPANS = [(0, 150), (37, 1), (100, 110), (300, 1), (128, 2), (0, 1)]
CPU = torch.device("cpu")


def moved(value: Any, device: torch.device) -> Any:
    """The same arguments with every tensor on another device; nothing is shared."""
    if isinstance(value, Tensor):
        return value.clone().to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: moved(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)
    if isinstance(value, tuple):
        made = [moved(part, device) for part in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    return value


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [t for part in value for t in leaves(part)]
    if dataclasses.is_dataclass(value):
        return [t for f in dataclasses.fields(value) for t in leaves(getattr(value, f.name))]
    return []


def results(op: Callable[..., Any], case: dict[str, Any]) -> list[Tensor]:
    """What an operation returns; else what it writes, from the first page or slot on."""
    found = leaves(op(**case))
    if not found:
        written = (*case.get("pages", ()), case.get("pairs"), case.get("ring"))
        found = [t[1:] for t in written if t is not None and t.numel()]
        assert found
    return [t.cpu() for t in found]


def as_numbers(tensor: Tensor) -> Tensor:
    """Records without quantisers are fp32 numbers, stored as bytes."""
    return tensor.contiguous().view(torch.float32) if tensor.dtype == torch.uint8 else tensor


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return nano_directory(tmp_path_factory.mktemp("nano"))


@pytest.mark.parametrize("sizes", ["small", "two streams", "nano", "mini"])
@pytest.mark.parametrize("name", [*OPS, "sample"])
def test_an_operation_gives_the_numbers_of_the_cpu(gpu, nano, name, sizes):
    arch = {
        "small": lambda: SMALL,
        "two streams": lambda: TWO_STREAMS,
        "nano": lambda: load_arch(nano),
        "mini": small,
    }[sizes]()
    make = Maker(arch, quantised=False)
    case = importlib.import_module(f"deepinfer.ops.{name}.cases").case(make, make.batch(SPANS))
    there = {name: moved(value, gpu.device) for name, value in case.items()}
    assert all(t.device.type == gpu.device.type for t in leaves(tuple(there.values())))
    bound = getattr(Operations.bind(arch, NOQUANT, gpu.arch), name, None)
    bound = bound or sample.bind(arch=gpu.arch)
    op = OPS.get(name, sample)
    wanted, found = results(op.reference, case), results(bound, packed(bound, there))
    assert len(wanted) == len(found)
    for one, other in zip(map(as_numbers, wanted), map(as_numbers, found), strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        if one.is_floating_point():
            size = one[one.isfinite()].abs().max().clamp(min=1e-30) if one.numel() else 1.0
            torch.testing.assert_close(
                other / size, one / size, rtol=1e-4, atol=2e-6, equal_nan=True
            )
        else:  # choices: equal but where two values nearly tie
            assert one.eq(other).double().mean() > 0.995


def prefill_and_decode(net: Network, prompts: list[list[int]], steps: int) -> Tensor:
    """Logits fp32 [steps + 1, requests, vocab] on the CPU, the same tokens everywhere."""
    state = State.allocate(
        net.arch, net.records, pages=40, slots=len(prompts) + 1, device=net.device
    )
    state.pages.fill_(255)
    state.slots.fill_(255)
    pages = [tuple(range(3 * i + 1, 3 * i + 4)) for i in range(len(prompts))]
    slices = [
        RowSlice(p, 0, len(p), i + 1, pages[i], decoder_start=max(0, len(p) - 140))
        for i, p in enumerate(prompts)
    ]
    forward = run(net, state, slices)
    last = torch.tensor([high - 1 for _, high in forward.batch.slices], device=net.device)
    found = [net.logits(forward.hidden[last]).cpu()]
    known = [list(p) for p in prompts]
    for step in range(steps):
        for i, ids in enumerate(known):
            ids.append(10 + (7 * step + i) % 400)
        ones = [
            RowSlice(p, len(p) - 1, 1, i + 1, pages[i], decoder_start=max(0, len(prompts[i]) - 140))
            for i, p in enumerate(known)
        ]
        found.append(net.logits(run(net, state, ones).hidden).cpu())
    return torch.stack(found)


def ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 500, (count,), generator=generator).tolist()


def both(directory, gpu) -> tuple[Network, Network]:
    options = LoadOptions(numerics="noquant")
    if directory is not None:
        there = load_network(directory, CPU, "cpu", options)
        return there, load_network(directory, gpu.device, gpu.arch, options)
    return mini(CPU, "cpu"), mini(gpu.device, gpu.arch)


def mini(device: torch.device, device_arch: str) -> Network:
    """Random weights at small sizes."""
    arch = small()
    ops = Operations.bind(arch, NOQUANT, device_arch)
    weights = WeightLoader(DummySource(arch, 3), arch, ops, NOQUANT, device).load()
    return Network(arch, NOQUANT, ops, weights, hash_map(arch))


@pytest.mark.parametrize("model", ["nano", "mini"])
def test_a_network_gives_the_logits_of_the_cpu(gpu, nano, model):
    there, here = both(nano if model == "nano" else None, gpu)
    prompts = [ids(count, count) for count in (170, 9, 131)]
    wanted, found = (prefill_and_decode(net, prompts, 4) for net in (there, here))
    assert bool(wanted.isfinite().all())
    assert (found - wanted).abs().max() < 1e-3
    two = wanted.topk(2, dim=-1).values
    clear = two[..., 0] - two[..., 1] > 2e-3
    assert clear.double().mean() > 0.9
    assert torch.equal(found.argmax(-1)[clear], wanted.argmax(-1)[clear])
