"""Each product of the expert kernels alone, against exact sums of the stored numbers."""
# pyright: reportIndexIssue=false

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.experts.packing import PackedMatrix, pack, pack_matrix
from deepinfer.ops.experts.reference import expert_rows, swiglu_clamp
from deepinfer.ops.formats import (
    Fp4Weight,
    Quantised,
    decode_e4m3,
    decode_e8m0,
    dequantise_fp4_weight,
    dequantise_fp8,
    encode_e4m3,
    quantise_fp8,
)

pytest.importorskip("triton")
from deepinfer.ops.experts import triton as kernels

pytestmark = pytest.mark.gpu
# Columns of the input with one scale, shape of the weight: gate and up, down.
PRODUCTS = [(128, (4608, 5120)), (64, (5120, 2304))]


def moved(x: Quantised, width: int) -> tuple[Tensor, Tensor]:
    """FP8 codes with the largest scale of each `width` columns, and these scales."""
    scale = x.scale.int().unflatten(1, (-1, width // 32))
    most = scale.amax(2, keepdim=True)
    size = torch.exp2((scale - most).float()).flatten(1).repeat_interleave(32, 1)
    codes = encode_e4m3(decode_e4m3(x.codes) * size)
    return codes, decode_e8m0(most.squeeze(2).to(torch.uint8))


def product(x: Quantised, weight: Fp4Weight, width: int, tokens: int, warps: int) -> Tensor:
    """x W^T in bf16 by the second or third kernel, all rows in tiles of one expert."""
    codes, sizes = moved(x, width)
    packed = PackedMatrix(*(t[None] for t in pack_matrix(*weight)[0]))
    rows, columns = codes.shape
    out, device = packed.base.shape[1], codes.device
    first = torch.arange(0, rows, tokens, dtype=torch.int32, device=device)
    expert, taken = torch.zeros_like(first), (rows - first).clamp(max=tokens)
    found = torch.full((rows, out), torch.nan, dtype=torch.bfloat16, device=device)
    kernels._multiply[(out // 128, len(first))](
        codes.view(torch.float8_e4m3fn), sizes.T.contiguous(), rows, *packed, first, expert, first,
        taken, sizes, found, sizes, rows, 10.0, columns, out, 0, 128, tokens, 16, 4, 3,
        width, num_warps=warps,
    )  # fmt: skip
    return found


def weight_of(shape: tuple[int, int], device: torch.device) -> Fp4Weight:
    stored = cases.expert_weights(1, shape[1], shape[0] // 2, device).w13
    assert isinstance(stored, Fp4Weight)
    return Fp4Weight(stored.codes[0], stored.scale[0])


def exact(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().T


@pytest.mark.parametrize(("tokens", "warps"), [(16, 4), (48, 4), (128, 8)])
@pytest.mark.parametrize(("width", "shape"), PRODUCTS)
def test_products_lie_within_one_bf16_step_of_the_exact_ones(gpu, width, shape, tokens, warps):
    weight = weight_of(shape, gpu.device)
    x = cases.activations(130, shape[1], gpu.device)
    found = product(x, weight, width, tokens, warps).double()
    left, right = dequantise_fp8(x).double(), dequantise_fp4_weight(weight).double()
    wanted, sizes = exact(left, right), exact(left.abs(), right.abs())
    step = torch.exp2(wanted.abs().log2().floor() - 7)
    # Sums that cancel keep the unit's error; it is bound by the sizes of what is added.
    usual = wanted.abs() >= wanted.square().mean(1, keepdim=True).sqrt() / 16
    near = (found - wanted.bfloat16().double()).abs() <= step
    assert near[usual].double().mean() >= 0.999
    assert bool(((found - wanted).abs() <= step / 2 + sizes * 2.0**-11).all())
    assert bool(((found - wanted).norm(dim=1) / wanted.norm(dim=1) < 3e-3).all())


@pytest.mark.parametrize("blind", [False, True], ids=["seen", "unseen"])
@pytest.mark.parametrize("octaves", [1, 4, 10, 17, 40])
@pytest.mark.parametrize(("width", "shape"), PRODUCTS)
def test_what_groups_of_small_scale_lose_beside_a_large_one(gpu, width, shape, octaves, blind):
    weight = weight_of((256, shape[1]), gpu.device)
    if blind:  # the weight does not see the large group, only what it does to its neighbours
        codes = weight.codes.unflatten(1, (-1, width // 2)).clone()
        codes[..., :16] = 0
        weight = Fp4Weight(codes.flatten(1), weight.scale)
    values = torch.randn((33, shape[1] // width, width), device=gpu.device)
    values[..., 32:] *= 2.0**-octaves
    x = quantise_fp8((values.flatten(1) * 2.0**16).to(torch.bfloat16))
    found = product(x, weight, width, 48, 4).double()
    left, right = dequantise_fp8(x).double(), dequantise_fp4_weight(weight).double()
    wanted, all_sizes = exact(left, right), exact(left.abs(), right.abs())
    # Half a step of the smallest FP8 numbers, 2^-10, in units of the large group's scale.
    scale = decode_e8m0(x.scale).unflatten(1, (-1, width // 32)).amax(2).double()
    lost = scale.repeat_interleave(width, 1) * 2.0**-10 @ right.abs().T
    bound = lost + all_sizes * 2.0**-10 + wanted.abs() * 2.0**-8
    assert bool(((found - wanted).abs() <= bound).all())
    if not blind:
        assert bool(((found - wanted).norm(dim=1) / wanted.norm(dim=1) < 3e-3).all())


def test_the_first_kernel_moves_codes_to_the_largest_of_four_scales(gpu):
    values = torch.randn((70, 5120), device=gpu.device)
    values *= (
        torch.exp2(torch.randint(-20, 20, (70, 160, 1), device=gpu.device).float())
        .expand(-1, -1, 32)
        .flatten(1)
    )
    values[3], values[4, 64:] = 0, 1e9
    x = quantise_fp8(values.to(torch.bfloat16))
    ids, _ = cases.routing(70, 6, 6, gpu.device)
    made = kernels.sort(x, ids, 6, 64, overlap=False)
    codes, sizes = moved(x, 128)
    assert torch.equal(made.codes.view(torch.uint8), codes)
    assert torch.equal(made.sizes, sizes.T)


@pytest.mark.parametrize(("tokens", "width", "warps"), [(300, 48, 4), (4096, 64, 8)])
def test_the_middle_takes_the_reference_codes_or_their_neighbours(gpu, tokens, width, warps):
    hidden, inner, limit = 1280, 768, 10.0
    weights = cases.expert_weights(6, hidden, inner, gpu.device)
    x = cases.activations(tokens, hidden, gpu.device)
    ids, share = cases.routing(tokens, 6, 6, gpu.device)
    made, packed = kernels.sort(x, ids, 6, width, overlap=False), pack(weights)
    entries = ids.numel()
    codes = torch.full((entries, inner), 127, dtype=torch.uint8, device=gpu.device)  # NaN
    sizes = torch.full((inner // 64, entries), torch.nan, device=gpu.device)
    kernels._multiply[(2 * inner // 128, made.table.shape[1])](
        made.codes, made.sizes, tokens, *packed.w13, made.order, *made.table, share,
        codes.view(torch.float8_e4m3fn), sizes, entries, limit, hidden, 2 * inner, 6, 128, width,
        16, 4, 3, 128, num_warps=warps,
    )  # fmt: skip
    found = decode_e4m3(codes) * sizes.T.repeat_interleave(64, 1)
    order = made.order.long()
    plain, expert, part = (
        dequantise_fp8(x)[order // 6],
        ids.flatten()[order],
        share.flatten()[order],
    )
    wanted = torch.empty_like(found)
    for number in range(6):
        mine = expert == number
        product = plain[mine] @ expert_rows(weights.w13, number).T
        value = swiglu_clamp(product.bfloat16(), limit) * part[mine].unsqueeze(1)
        wanted[mine] = dequantise_fp8(quantise_fp8(value.bfloat16()))
    assert (found != wanted).double().mean() < 6e-2
    # The next code is a seventh away at most; sums that cancel, a part of what is beside them.
    most = wanted.abs().unflatten(1, (-1, 64)).amax(2).repeat_interleave(64, 1)
    bound = torch.maximum(found.abs(), wanted.abs()) / 7 + most / 64
    assert bool(((found - wanted).abs() <= bound).all())
