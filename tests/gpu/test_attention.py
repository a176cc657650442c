"""The attention kernel against the reference, and a row's bits against its company."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.ops.cases import Maker, rows_of
from deepinfer.ops.sparse_attention import cases, sparse_attention
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops.sparse_attention import triton as kernel
from deepinfer.ops.sparse_attention import triton_split as split

pytestmark = pytest.mark.gpu
LIKE_THE_RELEASE = replace(
    SMALL, num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, sliding_window=128,
    index_topk=512,
)  # fmt: skip
WIDER = replace(SMALL, head_dim=128)
SPANS = [(0, 5), (700, 3), (1500, 1), (60, 200), (3000, 2)]


def row_errors(found: Tensor, wanted: Tensor) -> Tensor:
    wide = wanted.double().flatten(1)
    return (found.double().flatten(1) - wide).norm(dim=1) / wide.norm(dim=1).clamp(min=1e-30)


def given(gpu: Any, arch: Any, ratio: int) -> dict[str, Any]:
    make = Maker(arch, device=gpu.device)
    return cases.case(make, make.batch(SPANS), ratio=ratio)


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("arch", [SMALL, LIKE_THE_RELEASE])
def test_rows_agree_with_the_reference(gpu, arch, ratio):
    case = given(gpu, arch, ratio)
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
    found = kernel.sparse_attention(**case)
    errors = row_errors(found, sparse_attention.reference(**case))
    assert bool((errors < 5e-3).all()), f"largest relative error of a row {errors.max().item():.2e}"


@pytest.mark.parametrize("ratio", [0, 2])
def test_what_is_not_visible_may_hold_anything(gpu, ratio):
    case = given(gpu, LIKE_THE_RELEASE, ratio)
    wanted = kernel.sparse_attention(**case)
    case["ring"][0] = 255  # NaN codes and scales
    if ratio:
        case["pages"].latents[0] = 255
    torch.testing.assert_close(kernel.sparse_attention(**case), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("ratio", [0, 1])
def test_a_row_alone_has_the_bits_of_the_row_in_any_batch(gpu, ratio):
    case = given(gpu, LIKE_THE_RELEASE, ratio)
    whole = kernel.sparse_attention(**case)
    for keep in ([8], [209], [8, 209]):  # rows that see no other row of their step
        index = torch.tensor(keep, device=gpu.device)
        part = kernel.sparse_attention(**rows_of(case, cases.PER_TOKEN, index))
        torch.testing.assert_close(part, whole[index], rtol=0, atol=0)


def test_scores_of_any_size_stay_finite(gpu):
    case = given(gpu, LIKE_THE_RELEASE, 1)
    for size in (1e-4, 1e3):
        scaled = case | {"q": case["q"] * size}
        found = kernel.sparse_attention(**scaled)
        assert bool(torch.isfinite(found).all())
        assert bool((row_errors(found, sparse_attention.reference(**scaled)) < 2e-2).all())


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_fifty_repeats_over_poisoned_memory_have_the_bits_of_the_row_alone(gpu, ratio):
    make = Maker(LIKE_THE_RELEASE, device=gpu.device)
    case = cases.case(make, make.batch([(40 * row, 1) for row in range(64)]), ratio=ratio)
    whole = kernel.sparse_attention(**case)
    rows = (0, 1, 31, 63)
    alone = []
    for row in rows:
        index = torch.tensor([row], device=gpu.device)
        alone.append(rows_of(case, cases.PER_TOKEN, index))
    for repeat in range(50):
        poison = torch.full((2**24 + repeat,), 255, dtype=torch.uint8, device=gpu.device)
        del poison
        assert torch.equal(kernel.sparse_attention(**case), whole)
        row = repeat % len(rows)
        assert torch.equal(kernel.sparse_attention(**alone[row])[0], whole[rows[row]])


@pytest.mark.parametrize("size", [1, 8, 15, 16, 40, 100])
def test_scales_of_any_size_are_decoded_as_in_the_reference(gpu, size):
    case = given(gpu, LIKE_THE_RELEASE, 1)
    window, latent = case["layout"].window, case["layout"].latent
    for place in ("records", "ring"):
        case[place][..., window.code_bytes :] = size
    case["pages"].latents[..., latent.code_bytes :] = size
    found, wanted = kernel.sparse_attention(**case), sparse_attention.reference(**case)
    assert bool(torch.isfinite(found).all())
    assert bool((row_errors(found, wanted) < 2e-2).all())


@pytest.mark.parametrize("ratio", [0, 1])
def test_the_shapes_of_programs_change_no_bits(gpu, ratio, monkeypatch):
    case = given(gpu, LIKE_THE_RELEASE, ratio)
    wanted = split.tiled(**case, tiles=split.choose(len(case["q"])))
    monkeypatch.setattr(split, "TOKENS", 100)  # of 211
    for tiles in (
        split.Tiles(64, 2, 64, 4, 2),
        split.Tiles(256, 1, 256, 8, 1),
        split.Tiles(512, 1, 512, 8, 2),
    ):
        torch.testing.assert_close(split.tiled(**case, tiles=tiles), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("arch", [SMALL, LIKE_THE_RELEASE])
def test_one_launch_has_the_bits_of_two_with_any_number_of_programs(gpu, arch, ratio):
    case = given(gpu, arch, ratio)
    wanted = split.tiled(**case, tiles=split.choose(8))
    for programs in (132, 7, 1):
        torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
        found = kernel.in_one(**case, programs=programs)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1e-4, 30.0, 1e3])
def test_one_launch_has_the_bits_of_two_however_far_scores_lie_apart(gpu, size):
    case = given(gpu, LIKE_THE_RELEASE, 1)
    window, latent = case["layout"].window, case["layout"].latent
    ids = torch.where(case["ids"] % 3 == 0, case["ids"], -1)
    case |= {"q": case["q"] * size, "ids": ids}
    for recent, selected in ((None, None), (100, 60), (127, 40), (110, 126)):
        if recent is not None:
            for place in ("records", "ring"):
                case[place][..., window.code_bytes :] = recent
            case["pages"].latents[..., latent.code_bytes :] = selected
        wanted = split.tiled(**case, tiles=split.choose(8))
        assert bool(torch.isfinite(wanted).all())
        torch.testing.assert_close(kernel.in_one(**case), wanted, rtol=0, atol=0)


def test_a_selection_may_be_empty_or_have_holes(gpu):
    case = given(gpu, LIKE_THE_RELEASE, 1)
    ids = case["ids"]
    some = torch.where(ids % 3 == 0, ids, -1)
    for chosen in (torch.full_like(ids, -1), some, some[:, :100], some[:, :0]):
        part: dict[str, Any] = case | {"ids": chosen.contiguous()}
        wanted = sparse_attention.reference(**part)
        for found in (
            kernel.in_one(**part),
            split.tiled(**part, tiles=split.choose(8)),
        ):
            assert bool((row_errors(found, wanted) < 5e-3).all())


SLICES = [(0, 3), (700, 130), (3000, 1), (0, 257), (1500, 128), (60, 40)]  # three are long


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("arch", [WIDER, LIKE_THE_RELEASE])
def test_long_slices_have_the_bits_of_two_launches_with_any_number_of_programs(gpu, arch, ratio):
    make = Maker(arch, device=gpu.device)
    case = cases.case(make, make.batch(SLICES), ratio=ratio)
    wanted = split.tiled(**case, tiles=split.choose(8))
    for programs in (132, 7, 1) * 3:
        torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the outputs
        found = kernel.in_runs(**case, programs=programs)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1e-4, 30.0, 1e3])
def test_long_slices_have_the_bits_of_two_launches_however_far_scores_lie_apart(gpu, size):
    make = Maker(LIKE_THE_RELEASE, device=gpu.device)
    case = cases.case(make, make.batch(SLICES), ratio=1)
    window, latent = case["layout"].window, case["layout"].latent
    ids = torch.where(case["ids"] % 3 == 0, case["ids"], -1)
    case |= {"q": case["q"] * size, "ids": ids}
    for recent, selected in ((None, None), (100, 60), (127, 40), (110, 126)):
        if recent is not None:
            for place in ("records", "ring"):
                case[place][..., window.code_bytes :] = recent
            case["pages"].latents[..., latent.code_bytes :] = selected
        wanted = split.tiled(**case, tiles=split.choose(8))
        torch.testing.assert_close(kernel.in_runs(**case), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("ratio", [0, 2])
def test_a_long_slice_never_reads_what_is_not_visible(gpu, ratio):
    make = Maker(LIKE_THE_RELEASE, device=gpu.device)
    case = cases.case(make, make.batch(SLICES), ratio=ratio)
    wanted = kernel.in_runs(**case)
    batch = case["batch"]
    case["ring"][0] = 255  # NaN codes and scales
    for first, _ in batch.slices:
        if not int(batch.starts[first]):  # nothing was stored before
            case["ring"][batch.slots[batch.rows[first]]] = 255
    if ratio:
        case["pages"].latents[0] = 255
    torch.testing.assert_close(kernel.in_runs(**case), wanted, rtol=0, atol=0)


def test_a_selection_of_a_long_slice_may_be_empty_or_have_holes(gpu):
    make = Maker(LIKE_THE_RELEASE, device=gpu.device)
    case = cases.case(make, make.batch(SLICES), ratio=1)
    ids = case["ids"]
    some = torch.where(ids % 3 == 0, ids, -1)
    for chosen in (torch.full_like(ids, -1), some, some[:, :100], some[:, :0]):
        part: dict[str, Any] = case | {"ids": chosen.contiguous()}
        wanted = split.tiled(**part, tiles=split.choose(8))
        torch.testing.assert_close(kernel.in_runs(**part), wanted, rtol=0, atol=0)
