"""The index-score kernels against the reference, and a row's choice against its company."""

from dataclasses import replace

import pytest
import torch

from deepinfer.ops.cases import Maker, rows_of
from deepinfer.ops.index_select import CandidateRule, cases, index_select
from deepinfer.ops.index_select.reference import select
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops import gluon_best, triton_best
from deepinfer.ops.gluon_best import Seen
from deepinfer.ops.index_select import hopper, triton

pytestmark = pytest.mark.gpu
WIDE = replace(SMALL, index_n_heads=32, index_head_dim=128, qk_rope_head_dim=64, index_topk=128)
SPANS = [(0, 5), (131, 2), (700, 1), (60, 150), (1800, 1), (1020, 4), (511, 3)]
KERNELS = pytest.mark.parametrize("kernel", [hopper, triton], ids=["hopper", "triton"])
BEST = pytest.mark.parametrize("best", [gluon_best.best, triton_best.best], ids=["gluon", "triton"])


@KERNELS
@pytest.mark.parametrize("publish", [False, True])
@pytest.mark.parametrize("ratio", [1, 2])
def test_choices_agree_with_the_reference(gpu, kernel, ratio, publish):
    make = Maker(WIDE, device=gpu.device)
    given = cases.case(make, make.batch(SPANS), ratio=ratio, publish=publish)
    found, wanted = kernel.index_select(**given), index_select.reference(**given)
    assert (found.ids == wanted.ids).double().mean() > 0.99  # nearly equal scores may swap
    assert torch.equal(found.ids < 0, wanted.ids < 0)
    if publish:
        assert found.blocks is not None
        assert wanted.blocks is not None
        assert (found.blocks == wanted.blocks).double().mean() > 0.99


@KERNELS
def test_scores_stay_within_rounding_and_hide_what_is_not_visible(gpu, kernel):
    make = Maker(WIDE, device=gpu.device)
    batch = make.batch(SPANS)
    given = cases.case(make, batch, ratio=2)
    queries, pages, record = given["queries"], given["pages"], given["record"]
    whole = kernel.scores(queries, batch, pages, slice(None), record).entries
    visible = (batch.positions + 1) // 2
    column = torch.arange(whole.shape[1], device=gpu.device)
    assert torch.equal(torch.isfinite(whole), column < visible.unsqueeze(1))
    some = kernel.scores(queries, batch, pages, slice(7, 9), record).entries
    assert torch.equal(some, whole[7:9])


@pytest.mark.parametrize("heads", [16, 32])
@pytest.mark.parametrize("ratio", [1, 2])
def test_both_kernels_give_the_same_bits(gpu, ratio, heads):
    make = Maker(replace(WIDE, index_n_heads=heads), device=gpu.device)
    batch = make.batch(SPANS)
    given = cases.case(make, batch, ratio=ratio)
    queries, pages, record = given["queries"], given["pages"], given["record"]
    rule = CandidateRule(40, 8)
    call = (queries, batch, pages, slice(None), record)
    one, two = (k.scores(*call, rule=rule, publish=True) for k in (hopper, triton))
    assert torch.equal(one.entries, two.entries)
    assert torch.equal(one.blocks, two.blocks)
    blocks = triton_best.best(two.blocks, rule.limit)
    one, two = (k.scores(*call, rule=rule, within=blocks).entries for k in (hopper, triton))
    assert torch.equal(one, two)


@KERNELS
def test_a_row_alone_chooses_as_in_any_batch(gpu, kernel):
    make = Maker(WIDE, device=gpu.device)
    given = cases.case(make, make.batch(SPANS), ratio=1)
    whole = kernel.index_select(**given)
    for row in (4, 7, 100, 158, 160, 161, 165):
        index = torch.tensor([row], device=gpu.device)
        alone = kernel.index_select(**rows_of(given, cases.PER_TOKEN, index))
        assert torch.equal(alone.ids[0], whole.ids[row])


@KERNELS
def test_scores_of_a_row_have_the_same_bits_alone_and_in_a_group(gpu, kernel):
    make = Maker(WIDE, device=gpu.device)
    batch = make.batch([(1020, 4), (2043, 3), (77, 2)])
    given = cases.case(make, batch, ratio=1)
    queries, pages, record = given["queries"], given["pages"], given["record"]
    whole = kernel.scores(queries, batch, pages, slice(None), record).entries
    for row in range(len(batch.positions)):
        one = rows_of(given, cases.PER_TOKEN, torch.tensor([row], device=gpu.device))
        alone = kernel.scores(one["queries"], one["batch"], pages, slice(None), record).entries
        assert torch.equal(alone[0], whole[row])


def numbers(device: torch.device, columns: int) -> dict[str, torch.Tensor]:
    """Rows that are hard to choose from."""
    scores = torch.randn(5, columns, device=device)
    column = torch.arange(columns, device=device)
    ties = torch.randint(-2, 3, (5, columns), device=device).float()
    return {
        "normal": scores,
        "ties": ties,
        "few": scores.masked_fill(column > 20, -torch.inf),
        "some": scores.masked_fill(column > 600, -torch.inf),
        "zeros of both signs": -ties * 0.0,
        "none": torch.full_like(scores, -torch.inf),
        "ascending": column.float().repeat(5, 1),
        "descending": -column.float().repeat(5, 1),
        "runs": scores + 100 * (column // 100 % 7 == 0),
        "infinite": scores.masked_fill(column % 997 == 3, torch.inf),
        "mostly zero": (scores - 2.5).clamp(min=0),
        "rising": scores + 4 * column / columns,
        "far apart": -torch.exp(20 * scores),
    }


def chosen(scores: torch.Tensor, count: int) -> torch.Tensor:
    every = torch.full((len(scores),), scores.shape[1], device=scores.device)
    return select(scores, every, count, blocks=None, rule=None, publish=False).ids


@BEST
@pytest.mark.parametrize("columns", [30, 700, 4097, 8192, 40_001, 131_072])
def test_the_best_are_those_of_a_stable_sort(gpu, columns, best):
    for name, given in numbers(gpu.device, columns).items():
        for count in (12, 512):
            assert torch.equal(best(given, count), chosen(given, count)), name


@pytest.mark.parametrize("columns", [700, 5000, 16_384, 65_536, 131_080])
def test_the_best_of_16_bits_are_those_of_a_stable_sort(gpu, columns):
    for name, given in numbers(gpu.device, columns).items():
        given = given.bfloat16()
        assert torch.equal(gluon_best.best(given, 512), chosen(given.float(), 512)), name


@pytest.mark.parametrize(("columns", "count"), [(4096, 2048), (16_384, 2048), (131_072, 2048)])
def test_many_of_a_row_are_chosen_likewise(gpu, columns, count):
    for name, given in numbers(gpu.device, columns).items():
        assert torch.equal(gluon_best.best(given, count), chosen(given, count)), name


@pytest.mark.parametrize("columns", [1_048_576, 1_500_000])
def test_few_long_rows_are_cut_into_parts_and_chosen_likewise(gpu, columns):
    scores = torch.randn(3, columns, device=gpu.device)
    assert torch.equal(gluon_best.best(scores, 512), chosen(scores, 512))
    ties = scores.to(torch.bfloat16)
    assert torch.equal(gluon_best.best(ties, 512), chosen(ties.float(), 512))


@pytest.mark.parametrize("columns", [4000, 40_000])
@pytest.mark.parametrize(("ratio", "unit", "width"), [(1, 1, 1), (2, 1, 1), (2, 8, 8), (1, 8, 1)])
def test_columns_that_a_row_does_not_see_are_not_read(gpu, columns, ratio, unit, width):
    positions = torch.tensor([0, 7, ratio * 3003 - 1, ratio * columns - 1], device=gpu.device)
    seen = ((positions + 1) // ratio + unit - 1) // unit * width
    hidden = torch.arange(columns, device=gpu.device) >= seen.unsqueeze(1)
    scores = torch.randn(4, columns, device=gpu.device)
    found = gluon_best.best(
        scores.masked_fill(hidden, torch.nan), 512, seen=Seen(positions, ratio, unit, width)
    )
    assert torch.equal(found, chosen(scores.masked_fill(hidden, -torch.inf), 512))


@KERNELS
@pytest.mark.parametrize("ratio", [1, 2])
def test_within_blocks_the_choice_is_that_of_the_reference(gpu, kernel, ratio):
    make = Maker(WIDE, device=gpu.device)
    given = cases.case(make, make.batch(SPANS), ratio=ratio, publish=True)
    blocks = kernel.index_select(**given).blocks
    within = given | {"blocks": blocks, "publish": False}
    found, wanted = kernel.index_select(**within), index_select.reference(**within)
    assert torch.equal(found.ids < 0, wanted.ids < 0)
    assert (found.ids == wanted.ids).double().mean() > 0.99
