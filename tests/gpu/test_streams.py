"""Update, collapse, Engram gate and hashing in Triton against their references; bits of a row."""

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.engram_gate import engram_gate
from deepinfer.ops.engram_rows import EngramHash, engram_rows
from deepinfer.ops.mhc_collapse import mhc_collapse
from deepinfer.ops.mhc_update import mhc_update

pytest.importorskip("triton")
from deepinfer.ops.engram_gate import triton as gate_kernel
from deepinfer.ops.engram_rows import triton as rows_kernel
from deepinfer.ops.mhc_collapse import triton as collapse_kernel
from deepinfer.ops.mhc_update import triton as update_kernel

pytestmark = pytest.mark.gpu
HIDDEN, VOCAB, CLASSES = 5120, 129280, 60_000
TOKENS = [1, 7, 64, 320]


def normal(gpu: Any, *shape: int) -> Tensor:
    return torch.randn(shape, device=gpu.device).to(torch.bfloat16)


def poisoned() -> None:
    torch.full((2**28,), 255, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_updated_streams_are_the_references_bits(gpu, tokens, dtype):
    streams, pending, _ = cases.boundary_inputs(tokens, HIDDEN, gpu.device)
    pending = pending._replace(output=pending.output.to(dtype))
    poisoned()
    found = update_kernel.mhc_update(streams, pending)
    assert torch.equal(found, mhc_update.reference(streams, pending))


@pytest.mark.parametrize("tokens", TOKENS)
def test_collapses_agree_with_the_reference(gpu, tokens):
    streams, _, pre = cases.boundary_inputs(tokens, HIDDEN, gpu.device)
    streams[0] = 0
    norm = normal(gpu, HIDDEN)
    poisoned()
    found = collapse_kernel.mhc_collapse(streams, pre, norm, 1e-6)
    wanted = mhc_collapse.reference(streams, pre, norm, 1e-6)
    assert torch.equal(found.plain, wanted.plain)
    torch.testing.assert_close(found.normed, wanted.normed, rtol=2**-7, atol=0)
    assert found.normed.ne(wanted.normed).double().mean() < 1e-3
    last = collapse_kernel.mhc_collapse(streams[-1:].contiguous(), pre[-1:], norm, 1e-6)
    assert torch.equal(last.normed[0], found.normed[-1])


@pytest.mark.parametrize("tokens", TOKENS)
def test_gates_agree_with_the_reference(gpu, tokens):
    streams, kv = normal(gpu, tokens, 4, HIDDEN), normal(gpu, tokens, 5 * HIDDEN)
    streams[0] = 0
    gains = normal(gpu, 4, HIDDEN), normal(gpu, 4, HIDDEN)
    live = torch.rand(tokens, device=gpu.device) > 0.2
    poisoned()
    found = gate_kernel.engram_gate(streams, kv, *gains, live, eps=1e-6)
    wanted = engram_gate.reference(streams, kv, *gains, live, eps=1e-6)
    torch.testing.assert_close(found.gate, wanted.gate, rtol=1e-4, atol=1e-5)
    assert bool((found.gate[~live] == 0).all())
    torch.testing.assert_close(found.streams, wanted.streams, rtol=2**-7, atol=1e-3)
    assert found.streams.ne(wanted.streams).double().mean() < 1e-3
    last = gate_kernel.engram_gate(
        streams[-1:].contiguous(), kv[-1:].contiguous(), *gains, live[-1:].contiguous(), eps=1e-6
    )
    assert torch.equal(last.streams[0], found.streams[-1])
    assert torch.equal(last.gate[0], found.gate[-1])


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("size", "columns"), [(4, 24), (3, 4)])
def test_hashed_rows_are_the_references(gpu, tokens, size, columns):
    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, device=gpu.device)

    primes = 16_000_000 + 2 * draw(0, 500, columns) + 1
    table = EngramHash(
        classes=draw(0, CLASSES, VOCAB),
        multipliers=2 * draw(0, (2**63 - 1) // CLASSES // 2, size) + 1,
        primes=primes,
        offsets=primes.cumsum(0) - primes,
        pad=2,
    )
    window = draw(-1, VOCAB, tokens, size)
    window[-1] = -1
    poisoned()
    found = rows_kernel.engram_rows(window, table)
    assert torch.equal(found, engram_rows.reference(window, table))
