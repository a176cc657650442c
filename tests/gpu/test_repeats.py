"""Kernels back to back, whose launches overlap, give the bits of kernels that run alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.device import find_device
from deepinfer.ops.experts import experts
from deepinfer.ops.grouped_output import OutputWeights, grouped_output
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.mhc_boundary import mhc_boundary
from deepinfer.ops.registry import Op
from deepinfer.ops.shared_expert import SharedWeights, shared_expert

pytest.importorskip("triton")

pytestmark = pytest.mark.gpu
HIDDEN, INNER, RANK, LIMIT = 5120, 2304, 1280, 10.0
ROUNDS = 25
Calls = list[Callable[[], object]]


def bound(op: Op, weights: Any) -> Callable[..., Any]:
    """The Triton implementation over weights that it packed, given as the keyword `weights`."""
    found = next(i for i in op.implementations if i.name == "triton")
    packed = found.pack(weights)
    return lambda *given, **facts: found.run(*given, packed, **facts)


def calls(device: torch.device, tokens: int) -> Calls:
    """One call of each kernel of a sub-layer at the sizes of the release, none on another's."""
    x = partial(cases.activations, tokens, device=device)
    routed = bound(experts, cases.expert_weights(6, HIDDEN, INNER, device))
    shared = SharedWeights(
        cases.fp8_weight(2 * INNER, HIDDEN, device, scales=(108, 112)),
        cases.fp8_weight(HIDDEN, INNER, device),
    )
    output = OutputWeights(
        cases.fp8_weight(8192, 4096, device), cases.fp8_weight(HIDDEN, 8192, device)
    )
    boundary = bound(mhc_boundary, cases.hyper_weights(HIDDEN, device))
    given = cases.boundary_inputs(tokens, HIDDEN, device)
    cross = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20, "quantise": True}
    o = torch.randn((tokens, 64, 512), device=device).to(torch.bfloat16)
    ids, share = cases.routing(tokens, 6, 6, device)
    some = torch.where(torch.rand(ids.shape, device=device) < 0.3, -1, ids)
    return [
        partial(boundary, *given, **cross),
        partial(bound(linear_fp8, cases.fp8_weight(RANK, HIDDEN, device)), x(HIDDEN)),
        partial(bound(linear_fp8, cases.fp8_weight(64 * 512, RANK, device)), x(RANK)),
        partial(bound(grouped_output, output), o, groups=8),
        partial(routed, x(HIDDEN), ids, share, limit=LIMIT),
        partial(bound(shared_expert, shared), x(HIDDEN), limit=LIMIT),
        partial(routed, x(HIDDEN), some, share, limit=LIMIT),
    ]


def tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, tuple) else []


def differing(found: list[object], wanted: list[object]) -> set[int]:
    """Numbers of the calls whose results differ in any bit."""
    pairs = zip(found, wanted * (len(found) // len(wanted)), strict=True)
    return {
        number % len(wanted)
        for number, (one, other) in enumerate(pairs)
        if any(
            not torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            for a, b in zip(tensors(one), tensors(other), strict=True)
        )
    }


@pytest.mark.parametrize("tokens", [8, 40, 64, 200])
def test_overlapping_launches_change_no_bits(gpu, tokens):
    device = find_device("cuda")
    every = calls(gpu.device, tokens)
    wanted: list[object] = []
    for call in every:
        device.synchronize()
        wanted.append(call())
        device.synchronize()
    assert all(bool(torch.isfinite(t.float()).all()) for w in wanted for t in tensors(w))
    found = [call() for _ in range(ROUNDS) for call in every]
    device.synchronize()
    assert not differing(found, wanted)
    del found
    held: list[object] = []
    graph, _ = device.graphs().capture(lambda: held.extend(call() for call in every * 3))
    for _ in range(ROUNDS):
        graph.replay()
    device.synchronize()
    assert not differing(held, wanted)
