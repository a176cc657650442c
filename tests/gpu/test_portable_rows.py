"""Portable kernels of boundary and attention: bits of those for Hopper, at any size of a step."""

from typing import Any

import pytest
import torch

from deepinfer.bench import cases
from deepinfer.ops.cases import Maker
from deepinfer.ops.mhc_boundary import mhc_boundary
from deepinfer.ops.sparse_attention import cases as attention_cases
from deepinfer.ops.sparse_attention import sparse_attention

pytest.importorskip("triton")
from deepinfer.ops.mhc_boundary import portable as boundary
from deepinfer.ops.mhc_boundary import triton as boundary_hopper
from deepinfer.ops.sparse_attention import portable as attention
from deepinfer.ops.sparse_attention import triton as attention_hopper
from tests.gpu.test_attention import LIKE_THE_RELEASE, SPANS, WIDER

pytestmark = pytest.mark.gpu
FACTS: dict[str, Any] = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20, "quantise": True}


def poison() -> None:
    torch.full((2**28,), 255, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("tokens", [1, 64, 97, 300, 1024])
@pytest.mark.parametrize("with_pending", [True, False])
def test_the_boundary_has_the_bits_of_the_one_for_hopper(gpu, tokens, with_pending):
    packed = boundary.pack(cases.hyper_weights(5120, gpu.device))
    streams, pending, pre = cases.boundary_inputs(tokens, 5120, gpu.device)
    given = (streams, pending if with_pending else None, pre, packed)
    wanted = boundary_hopper.mhc_boundary(*given, **FACTS)
    poison()
    found = boundary.mhc_boundary(*given, **FACTS)
    for name in ("streams", "pre", "post", "comb", "hidden"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert found.quantised is not None
    assert wanted.quantised is not None
    assert torch.equal(found.quantised.codes, wanted.quantised.codes)
    assert torch.equal(found.quantised.scale, wanted.quantised.scale)


@pytest.mark.parametrize(("tokens", "hidden"), [(200, 256), (130, 5120)])
def test_the_boundary_agrees_with_the_reference(gpu, tokens, hidden):
    weights = cases.hyper_weights(hidden, gpu.device)
    given = cases.boundary_inputs(tokens, hidden, gpu.device)
    found = boundary.mhc_boundary(*given, boundary.pack(weights), **FACTS)
    wanted = mhc_boundary.reference(*given, weights, **FACTS)
    assert torch.equal(found.streams, wanted.streams)
    for name in ("pre", "post", "comb"):
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(found.hidden, wanted.hidden, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("arch", [WIDER, LIKE_THE_RELEASE])
@pytest.mark.parametrize("spans", [SPANS, [(0, 1100), (7, 1)]], ids=["mixed", "a long slice"])
def test_attention_has_the_bits_of_the_one_for_hopper(gpu, arch, ratio, spans):
    make = Maker(arch, device=gpu.device)
    case = attention_cases.case(make, make.batch(spans), ratio=ratio)
    wanted = attention_hopper.sparse_attention(**case)
    poison()
    assert torch.equal(attention.sparse_attention(**case), wanted)


def test_attention_agrees_with_the_reference(gpu):
    make = Maker(LIKE_THE_RELEASE, device=gpu.device)
    case = attention_cases.case(make, make.batch([(900, 250)]), ratio=1)
    found = attention.sparse_attention(**case).double().flatten(1)
    wanted = sparse_attention.reference(**case).double().flatten(1)
    assert bool(((found - wanted).norm(dim=1) < 5e-3 * wanted.norm(dim=1)).all())
