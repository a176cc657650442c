"""The TileLang kernels on the device, compiled there, against the references."""

import pytest
import torch
from torch import Tensor

from deepinfer.ops.add_outputs import add_outputs
from deepinfer.ops.formats import Fp8Weight, quantise_fp8
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.mhc_collapse import mhc_collapse
from deepinfer.ops.mhc_update import Pending, mhc_update
from deepinfer.ops.norm_quantise import norm_quantise
from deepinfer.ops.stream_mean import stream_mean

pytest.importorskip("tilelang")
from deepinfer.ops.add_outputs import tilelang as sum_kernel
from deepinfer.ops.linear_fp8 import tilelang as linear_kernel
from deepinfer.ops.mhc_collapse import tilelang as collapse_kernel
from deepinfer.ops.mhc_update import tilelang as update_kernel
from deepinfer.ops.norm_quantise import tilelang as norm_kernel
from deepinfer.ops.stream_mean import tilelang as mean_kernel

pytestmark = pytest.mark.gpu


def made(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Numbers of many sizes, some of them zero."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator, device=device)
    size = torch.randint(-20, 20, shape, generator=generator, device=device)
    kept = torch.rand(shape, generator=generator, device=device) > 0.1
    return (values * torch.exp2(size) * kept).to(dtype)


@pytest.mark.parametrize("width", [96, 2080, 5120])
def test_streams_have_the_bits_of_the_references(gpu, width):
    device = gpu.device
    routed, shared = made(device, 2, 70, width, dtype=torch.float32)
    found = sum_kernel.add_outputs(routed, shared, dtype=torch.bfloat16)
    assert torch.equal(found, add_outputs.reference(routed, shared, dtype=torch.bfloat16))
    streams = made(device, 70, 4, width)
    comb = torch.softmax(made(device, 70, 4, 4, dtype=torch.float32), -1)
    weights = made(device, 70, 4, dtype=torch.float32).sigmoid()
    pending = Pending(made(device, 70, width), weights, comb)
    new = update_kernel.mhc_update(streams, pending)
    assert torch.equal(new, mhc_update.reference(streams, pending))
    norm = made(device, width)
    collapsed = collapse_kernel.mhc_collapse(streams, weights, norm, 1e-6)
    wanted = mhc_collapse.reference(streams, weights, norm, 1e-6)
    assert torch.equal(collapsed.plain, wanted.plain)
    torch.testing.assert_close(collapsed.normed, wanted.normed, rtol=2**-7, atol=0)
    mean = mean_kernel.stream_mean(streams)
    torch.testing.assert_close(mean, stream_mean.reference(streams), rtol=2**-7, atol=1e-2)
    alone = collapse_kernel.mhc_collapse(streams[69:], weights[69:], norm, 1e-6)
    assert torch.equal(alone.normed[0], collapsed.normed[69])


@pytest.mark.parametrize("width", [64, 1280, 5120])
def test_codes_are_those_of_the_norm_and_a_row_alone_has_its_bits(gpu, width):
    x, weight = made(gpu.device, 70, width), made(gpu.device, width)
    found = norm_kernel.norm_quantise(x, weight, eps=1e-6, quantise=True)
    wanted = norm_quantise.reference(x, weight, eps=1e-6, quantise=True)
    torch.testing.assert_close(found.hidden, wanted.hidden, rtol=2**-7, atol=0)
    assert found.quantised is not None
    for one, other in zip(found.quantised, quantise_fp8(found.hidden), strict=True):
        assert torch.equal(one, other)
    alone = norm_kernel.norm_quantise(x[69:], weight, eps=1e-6, quantise=True)
    assert torch.equal(alone.hidden[0], found.hidden[69])


@pytest.mark.parametrize(("out", "columns"), [(64, 96), (96, 256), (1280, 5120)])
def test_a_linear_is_right_to_fp32_sums_and_a_row_alone_has_its_bits(gpu, out, columns):
    x = quantise_fp8(made(gpu.device, 70, columns))
    codes = quantise_fp8(made(gpu.device, out, columns)).codes
    scale = torch.randint(110, 126, (out // 32, columns // 32), device=gpu.device)
    weight = Fp8Weight(codes, scale.to(torch.uint8))
    found, wanted = linear_kernel.linear_fp8(x, weight), linear_fp8.reference(x, weight)
    largest = float(wanted.float().abs().amax(1).amin())
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=largest * 2**-10)
    alone = linear_kernel.linear_fp8(type(x)(*(part[69:] for part in x)), weight)
    assert torch.equal(alone[0], found[69])
