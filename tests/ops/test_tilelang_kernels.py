"""The TileLang kernels, compiled for the C target and executed on the CPU, against references."""

import pytest
import torch
from torch import Tensor

from deepinfer.ops.add_outputs import add_outputs
from deepinfer.ops.formats import (
    Fp8Weight,
    Quantised,
    dequantise_fp8_weight,
    quantise_fp8,
)
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
from deepinfer.ops.tilelang_dialects import block_of, launch

DTYPES = [torch.bfloat16, torch.float32]
WIDTHS = [96, 2080]  # one program a row, and 65 blocks of 32


def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of many sizes, some of them zero, the same for the same shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    size = torch.exp2(torch.randint(-20, 20, shape, generator=generator))
    values = torch.randn(shape, generator=generator) * size
    values[torch.rand(shape, generator=generator) < 0.1] = 0.0
    return values.to(dtype)


def assert_close(found: Tensor, wanted: Tensor) -> None:
    """A bf16 number may lie one step beside, and few do: the sum of squares runs in fp32."""
    steps = 2**-7 if wanted.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, wanted, rtol=steps, atol=0)
    if wanted.dtype == torch.bfloat16:
        assert float((found != wanted).float().mean()) < 0.01


@pytest.mark.parametrize("width", [32, 96, 1024, 1280, 2080, 5120, 7168])
def test_blocks_of_columns_are_whole_and_multiples_of_32(width):
    assert width % block_of(width) == 0
    assert block_of(width) % 32 == 0
    assert block_of(width) <= 1024


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_means_and_updates_have_the_bits_of_the_references(width, dtype):
    routed, shared = made(5, width), made(5, width).flip(0)
    found = sum_kernel.add_outputs(routed, shared, dtype=dtype)
    assert torch.equal(found, add_outputs.reference(routed, shared, dtype=dtype))
    for count in (2, 4):
        streams = made(5, count, width, dtype=dtype)
        if count == 2:  # four numbers are added in another order there
            assert torch.equal(mean_kernel.stream_mean(streams), stream_mean.reference(streams))
        comb = torch.softmax(made(5, count, count), -1)
        pending = Pending(made(5, width, dtype=dtype), made(5, count).sigmoid(), comb)
        new = update_kernel.mhc_update(streams, pending)
        assert torch.equal(new, mhc_update.reference(streams, pending))


def test_the_mean_of_four_streams_is_right_to_rounding():
    streams = made(7, 4, 96)
    wanted = streams.double().mean(1)
    bound = streams.double().abs().sum(1) * 2**-23
    assert bool(((mean_kernel.stream_mean(streams).double() - wanted).abs() <= bound).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_collapse_has_the_bits_of_the_reference_and_its_norm_is_close(width, dtype):
    streams, pre = made(5, 4, width, dtype=dtype), made(5, 4).sigmoid()
    streams[2] = 0.0
    norm = made(width, dtype=dtype)
    found = collapse_kernel.mhc_collapse(streams, pre, norm, 1e-6)
    wanted = mhc_collapse.reference(streams, pre, norm, 1e-6)
    assert torch.equal(found.plain, wanted.plain)
    assert_close(found.normed, wanted.normed)
    assert not bool(found.normed[2].any())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_is_close_and_its_codes_are_those_of_what_it_returns(dtype):
    x, weight = made(9, 1280, dtype=dtype), made(1280, dtype=torch.bfloat16)
    x[3] = 0.0
    found = norm_kernel.norm_quantise(x, weight, eps=1e-6, quantise=True)
    assert_close(found.hidden, norm_quantise.reference(x, weight, eps=1e-6, quantise=True).hidden)
    assert found.quantised is not None
    for one, other in zip(found.quantised, quantise_fp8(found.hidden), strict=True):
        assert torch.equal(one, other)
    assert norm_kernel.norm_quantise(x, weight, eps=1e-6, quantise=False).quantised is None


def test_every_finite_bf16_number_is_quantised_as_the_reference_does():
    patterns = torch.arange(1 << 16).to(torch.int32).to(torch.uint16).view(torch.bfloat16)
    finite = patterns[patterns.isfinite()]
    # Ascending groups hold close numbers, shuffled ones whatever comes; 63 x 32 divides them all.
    mixed = finite[torch.randperm(len(finite), generator=torch.Generator().manual_seed(5))]
    ones = torch.ones(1, 1024, dtype=torch.bfloat16)
    for weight in (*finite.split(1024), *mixed.split(1024)):
        whole = torch.nn.functional.pad(weight, (0, 1024 - len(weight)))
        found = norm_kernel.norm_quantise(ones, whole, eps=0.0, quantise=True)
        assert torch.equal(found.hidden[0], whole)  # the mean square is one
        assert found.quantised is not None
        for one, other in zip(found.quantised, quantise_fp8(found.hidden), strict=True):
            assert torch.equal(one, other)


def test_scales_change_at_the_numbers_where_those_of_the_reference_do():
    powers = torch.exp2(torch.arange(-24, 72))
    edges = [powers * size for size in (1.0, 448.0)]
    beside = [torch.nextafter(e, torch.full_like(e, up)) for e in edges for up in (0.0, 1e38)]
    ones = torch.ones(1, 1024)
    for largest in torch.cat((*edges, *beside)).split(32):  # one for each group
        weight = torch.rand(32, 32, generator=torch.Generator().manual_seed(1)) * largest[:, None]
        weight[:, 7] = -largest
        found = norm_kernel.norm_quantise(ones, weight.view(-1), eps=0.0, quantise=True)
        assert torch.equal(found.hidden[0], weight.view(-1))
        assert found.quantised is not None
        for one, other in zip(found.quantised, quantise_fp8(found.hidden), strict=True):
            assert torch.equal(one, other)


def test_every_code_with_every_scale_of_a_weight_is_decoded_exactly():
    codes = torch.arange(256).to(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0  # not a number
    # 32 columns a scale: eight blocks across hold all codes, blocks below have other scales.
    scales = torch.arange(10, 247).to(torch.uint8)
    scales = torch.nn.functional.pad(scales, (0, -len(scales) % 4), value=127).view(-1, 4)
    unit = Quantised(
        torch.eye(256, dtype=torch.uint8) * 0x38, torch.full((256, 8), 127, dtype=torch.uint8)
    )
    for four in scales:
        weight = Fp8Weight(codes.repeat(128, 1), four[:, None].repeat(1, 8))
        found = linear_kernel.linear_fp8(unit, linear_kernel.pack(weight))
        assert torch.equal(found.float().T, dequantise_fp8_weight(weight))


@pytest.mark.parametrize(("tokens", "out", "columns"), [(3, 32, 96), (70, 96, 256), (64, 64, 64)])
def test_a_linear_is_right_to_fp32_sums_and_leaves_rows_behind_its_end_alone(tokens, out, columns):
    x = made(tokens, columns)
    weight = Fp8Weight(
        quantise_fp8(made(out, columns)).codes,
        torch.full((out // 32, columns // 32), 120, dtype=torch.uint8),
    )
    wanted = linear_fp8.reference(x, weight)
    found = linear_kernel.linear_fp8(x, weight)
    largest = wanted.float().abs().amax()
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=float(largest) * 2**-16)
    assert torch.equal(linear_kernel.linear_fp8(quantise_fp8(x), weight), found)
    room = torch.full((tokens + 5, out), 7.0, dtype=torch.bfloat16)
    launch(
        linear_kernel.describe, *quantise_fp8(x), *weight, room[:tokens], rows=out, columns=columns
    )
    assert torch.equal(room[:tokens], found)
    assert bool((room[tokens:] == 7.0).all())


def test_a_row_alone_has_the_bits_of_the_row_among_others():
    x, weight = made(66, 96, dtype=torch.bfloat16), made(96, dtype=torch.bfloat16)
    w = Fp8Weight(quantise_fp8(made(64, 96)).codes, torch.full((2, 3), 125, dtype=torch.uint8))
    normed = norm_kernel.norm_quantise(x, weight, eps=1e-6, quantise=True)
    product = linear_kernel.linear_fp8(x, w)
    for row in (0, 40, 65):
        only = x[row : row + 1]
        one = norm_kernel.norm_quantise(only, weight, eps=1e-6, quantise=True)
        assert torch.equal(one.hidden[0], normed.hidden[row])
        assert torch.equal(linear_kernel.linear_fp8(only, w)[0], product[row])


def test_no_tokens_give_no_rows_and_nothing_is_compiled():
    none = torch.empty(0, 64, dtype=torch.bfloat16)
    streams = torch.empty(0, 4, 64, dtype=torch.bfloat16)
    wide = torch.empty(0, 64)
    weight = Fp8Weight(torch.zeros(32, 64).to(torch.uint8), torch.zeros(1, 2).to(torch.uint8))
    pending = Pending(none, torch.empty(0, 4), torch.empty(0, 4, 4))
    assert sum_kernel.add_outputs(wide, wide, dtype=torch.bfloat16).shape == (0, 64)
    assert mean_kernel.stream_mean(streams).shape == (0, 64)
    assert update_kernel.mhc_update(streams, pending).shape == (0, 4, 64)
    assert collapse_kernel.mhc_collapse(streams, wide[:, :4], none, 1e-6).plain.shape == (0, 64)
    assert norm_kernel.norm_quantise(none, none, eps=1e-6, quantise=True).hidden.shape == (0, 64)
    assert linear_kernel.linear_fp8(none, weight).shape == (0, 32)


def test_weights_and_inputs_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="plain weight"):
        linear_kernel.pack(torch.zeros(32, 32))
    odd = Fp8Weight(torch.zeros(33, 32).to(torch.uint8), torch.zeros(2, 1).to(torch.uint8))
    with pytest.raises(ValueError, match="33 x 32"):
        linear_kernel.pack(odd)
    far = Fp8Weight(torch.zeros(32, 32).to(torch.uint8), torch.full((1, 1), 9).to(torch.uint8))
    with pytest.raises(ValueError, match="from 9 to 9"):
        linear_kernel.pack(far)
    with pytest.raises(ValueError, match="not torch.float16"):
        mean_kernel.stream_mean(torch.zeros(1, 4, 32, dtype=torch.float16))
    with pytest.raises(ValueError, match="rows of 2080"):
        norm_kernel.norm_quantise(made(1, 2080), made(2080), eps=1e-6, quantise=True)
    meta = torch.empty(1, 4, 32, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match="meta"):
        mean_kernel.stream_mean(meta)
