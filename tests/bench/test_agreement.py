"""Greedy tokens of two engines: what counts as a difference, and how many are to be expected."""

import pytest
import torch

from deepinfer.bench.agreement import SHAKEN, Agreement, behind_equal, compared, moved, shake
from deepinfer.runner.assemble import RowSlice
from tests.model.networks import network, new_state, run, tokens


def test_tokens_count_up_to_the_first_difference_and_with_it():
    ours = [(1, 2, 3, 4), (5, 6, 7, 8), (9, 9), (1, 2)]
    theirs = [(1, 2, 3, 4), (5, 0, 7, 8), (0, 9), (1, 2, 3)]
    found = behind_equal(ours, theirs)
    assert found == Agreement(compared=4 + 2 + 1 + 2, differences=2)
    assert found.share == pytest.approx(7 / 9)


def test_only_chance_excuses_a_smaller_share():
    expected = Agreement(1000, 80)
    assert Agreement(1000, 80).no_worse(expected)
    assert Agreement(1000, 100).no_worse(expected)
    assert not Agreement(1000, 200).no_worse(expected)
    assert Agreement(10, 2).no_worse(expected)
    assert not Agreement(30, 30).no_worse(Agreement(30, 0))


def test_a_difference_counts_only_where_the_reference_was_decided():
    between = [[1.0, 0.5, 0.001, 1.0]]
    same = compared([(1, 2, 3, 4)], [(1, 2, 3, 4)], between)
    assert same == {
        "equal": True,
        "equal_tokens_asked": 2,
        "requests_equal_to_the_end": 1,
        "largest_gap_at_a_difference": 0.0,
        "behind_equal": 1.0,
    }
    late = compared([(1, 2, 9, 9)], [(1, 2, 3, 4)], between)
    assert late["equal"]
    assert late["largest_gap_at_a_difference"] == 0.001
    early = compared([(1, 9, 9, 9)], [(1, 2, 3, 4)], between)
    assert not early["equal"]
    assert early["largest_gap_at_a_difference"] == 0.5
    assert early["behind_equal"] == 0.5
    both = compared([(1, 2, 3, 4), (7,)], [(1, 2, 3, 4), (8,)], [*between, [0.25]])
    assert not both["equal"]
    assert both["requests_equal_to_the_end"] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_values_move_by_one_unit_in_the_last_place_and_zeros_stay(dtype):
    values = torch.randn(20_000).to(dtype)
    values[:100] = 0.0
    found = moved(values, 0.1, torch.Generator().manual_seed(3))
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    steps = found.view(kind).int() - values.view(kind).int()
    assert set(steps.tolist()) == {-1, 0, 1}
    assert torch.equal(found[:100], values[:100])
    assert steps.ne(0).double().mean() == pytest.approx(0.1, abs=0.01)
    assert steps.double().mean().abs() < 0.01


def test_a_shaken_network_gives_other_numbers_near_the_old_ones():
    net = network.__wrapped__()
    ids = tokens(net, 30)
    slices = [RowSlice(ids, 0, len(ids), 1, (1,))]
    still = run(net, new_state(net), slices).hidden.float()
    shake(net, share=0.2)
    assert net.block.ops is net.ops
    assert not getattr(net.ops, SHAKEN).implementation.graph_safe
    first = run(net, new_state(net), slices).hidden.float()
    away = (first - still).pow(2).mean().sqrt() / still.std()
    assert 0 < away < 0.3
