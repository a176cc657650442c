"""The index-score kernel against the reference, and a row's choice against its company."""

from dataclasses import replace

import pytest
import torch

from deepinfer.ops.cases import Maker, rows_of
from deepinfer.ops.index_select import cases, index_select
from deepinfer.ops.index_select.reference import select
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops.index_select import triton as kernel
from deepinfer.ops.triton_best import best

pytestmark = pytest.mark.gpu
WIDE = replace(SMALL, index_n_heads=32, index_head_dim=128, qk_rope_head_dim=64, index_topk=128)
SPANS = [(0, 5), (131, 2), (700, 1), (60, 150), (1800, 1)]


@pytest.mark.parametrize("publish", [False, True])
@pytest.mark.parametrize("ratio", [1, 2])
def test_choices_agree_with_the_reference(gpu, ratio, publish):
    make = Maker(WIDE, device=gpu.device)
    given = cases.case(make, make.batch(SPANS), ratio=ratio, publish=publish)
    found, wanted = kernel.index_select(**given), index_select.reference(**given)
    assert (found.ids == wanted.ids).double().mean() > 0.99  # nearly equal scores may swap
    assert torch.equal(found.ids < 0, wanted.ids < 0)
    if publish:
        assert found.blocks is not None
        assert wanted.blocks is not None
        assert (found.blocks == wanted.blocks).double().mean() > 0.99


def test_scores_stay_within_rounding_and_hide_what_is_not_visible(gpu):
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


def test_a_row_alone_chooses_as_in_any_batch(gpu):
    make = Maker(WIDE, device=gpu.device)
    given = cases.case(make, make.batch(SPANS), ratio=1)
    whole = kernel.index_select(**given)
    for row in (4, 7, 100, 158):
        index = torch.tensor([row], device=gpu.device)
        alone = kernel.index_select(**rows_of(given, cases.PER_TOKEN, index))
        assert torch.equal(alone.ids[0], whole.ids[row])


@pytest.mark.parametrize("columns", [30, 700, 8192, 131_072])
def test_the_best_are_those_of_a_stable_sort(gpu, columns):
    scores = torch.randn(5, columns, device=gpu.device)
    ties = torch.randint(-2, 3, (5, columns), device=gpu.device).float()
    few = scores.masked_fill(torch.arange(columns, device=gpu.device) > 20, -torch.inf)
    for given in (scores, ties, few, -ties * 0.0, few.fill_(-torch.inf)):
        for count in (12, 512):
            wanted = select(
                given, torch.tensor(columns, device=gpu.device).expand(5), count,
                blocks=None, rule=None, publish=False,
            )  # fmt: skip
            assert torch.equal(best(given, count), wanted.ids)


@pytest.mark.parametrize("ratio", [1, 2])
def test_within_blocks_the_choice_is_that_of_the_reference(gpu, ratio):
    make = Maker(WIDE, device=gpu.device)
    given = cases.case(make, make.batch(SPANS), ratio=ratio, publish=True)
    blocks = kernel.index_select(**given).blocks
    within = given | {"blocks": blocks, "publish": False}
    found, wanted = kernel.index_select(**within), index_select.reference(**within)
    assert torch.equal(found.ids < 0, wanted.ids < 0)
    assert (found.ids == wanted.ids).double().mean() > 0.99
