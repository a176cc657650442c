"""The boundary kernels against the reference, and a row's bits against its company."""

from typing import Any

import pytest
import torch

from deepinfer.bench import cases
from deepinfer.ops.formats import dequantise_fp8
from deepinfer.ops.mhc_boundary import mhc_boundary

pytest.importorskip("triton")
from deepinfer.ops.mhc_boundary import triton as kernels
from deepinfer.ops.mhc_update import triton as update

pytestmark = pytest.mark.gpu
FACTS: dict[str, Any] = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20, "quantise": True}
HIDDEN = 5120


@pytest.mark.parametrize("tokens", [1, 7, 64, 257, 1024])
@pytest.mark.parametrize("with_pending", [True, False])
def test_results_agree_with_the_reference(gpu, tokens, with_pending):
    weights = cases.hyper_weights(HIDDEN, gpu.device)
    streams, pending, pre = cases.boundary_inputs(tokens, HIDDEN, gpu.device)
    given = (streams, pending if with_pending else None, pre)
    packed = kernels.pack(weights)
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
    found = kernels.mhc_boundary(*given, packed, **FACTS)
    wanted = mhc_boundary.reference(*given, weights, **FACTS)
    torch.testing.assert_close(found.streams, wanted.streams, rtol=0, atol=0)
    if with_pending:
        assert torch.equal(found.streams, update.mhc_update(streams, pending))
    for name in ("pre", "post", "comb"):
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(found.hidden, wanted.hidden, rtol=2**-7, atol=1e-6)
    assert found.hidden.ne(wanted.hidden).double().mean() < 1e-3
    assert found.quantised is not None
    assert wanted.quantised is not None
    same = found.quantised.codes.eq(wanted.quantised.codes).double().mean()
    assert same > 0.999
    error = dequantise_fp8(found.quantised) - found.hidden.float()
    assert error.norm() < 0.05 * found.hidden.float().norm()


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1e4])
def test_zero_rows_and_any_size_of_input(gpu, size):
    weights = cases.hyper_weights(HIDDEN, gpu.device)
    streams, pending, pre = cases.boundary_inputs(20, HIDDEN, gpu.device)
    streams, output = (streams * size).clone(), (pending.output * size).clone()
    streams[3] = 0
    output[3] = 0
    pending = pending._replace(output=output)
    found = kernels.mhc_boundary(streams, pending, pre, kernels.pack(weights), **FACTS)
    wanted = mhc_boundary.reference(streams, pending, pre, weights, **FACTS)
    torch.testing.assert_close(found.streams, wanted.streams, rtol=0, atol=0)
    torch.testing.assert_close(found.comb, wanted.comb, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.hidden, wanted.hidden, rtol=2**-7, atol=1e-6)
    assert bool((found.hidden[3] == 0).all())


def test_a_row_alone_has_the_bits_of_the_row_in_any_batch(gpu):
    packed = kernels.pack(cases.hyper_weights(HIDDEN, gpu.device))
    streams, pending, pre = cases.boundary_inputs(1300, HIDDEN, gpu.device)
    whole = kernels.mhc_boundary(streams, pending, pre, packed, **FACTS)
    for first, last in (
        (0, 1),
        (63, 64),
        (299, 300),
        (3, 19),
        (0, 64),
        (30, 94),
        (0, 65),
        (9, 209),
        (150, 1250),
    ):
        rows = torch.arange(first, last, device=gpu.device)
        part = kernels.mhc_boundary(streams[rows], pending.rows(rows), pre[rows], packed, **FACTS)
        wanted = whole.rows(rows)
        for name in ("streams", "pre", "post", "comb", "hidden"):
            torch.testing.assert_close(getattr(part, name), getattr(wanted, name), rtol=0, atol=0)
        assert part.quantised is not None
        assert wanted.quantised is not None
        assert torch.equal(part.quantised.codes, wanted.quantised.codes)
        assert torch.equal(part.quantised.scale, wanted.quantised.scale)


def test_plans_change_no_bits(gpu):
    packed = kernels.pack(cases.hyper_weights(HIDDEN, gpu.device))
    streams, pending, pre = cases.boundary_inputs(200, HIDDEN, gpu.device)
    usual = kernels.PLAN
    whole = kernels.launch(streams, pending, pre, packed, **FACTS, plan=usual)
    for plan in (
        usual._replace(few=200),
        usual._replace(few=200, narrow=200),
        usual._replace(few=200, eight=200),
        usual._replace(few=0),
        usual._replace(few=0, split_tokens=1),
        usual._replace(few=0, split_tokens=2, split_warps=2),
        usual._replace(few=0, split_tokens=8),
    ):
        found = kernels.launch(streams, pending, pre, packed, **FACTS, plan=plan)
        for name in ("streams", "pre", "post", "comb", "hidden"):
            assert torch.equal(getattr(found, name), getattr(whole, name)), (plan, name)


@pytest.mark.parametrize("hidden", [256, 512, 1280])
@pytest.mark.parametrize("tokens", [5, 100, 200])
def test_narrow_models_are_served_too(gpu, hidden, tokens):
    weights = cases.hyper_weights(hidden, gpu.device)
    given = cases.boundary_inputs(tokens, hidden, gpu.device)
    found = kernels.mhc_boundary(*given, kernels.pack(weights), **FACTS)
    wanted = mhc_boundary.reference(*given, weights, **FACTS)
    for name in ("pre", "post", "comb"):
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-5
        )
    torch.testing.assert_close(found.hidden, wanted.hidden, rtol=2**-7, atol=1e-6)
