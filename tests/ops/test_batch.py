"""Rings and pages against plain dictionaries, over arbitrary chunkings of several requests."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.batch import before, gather_entries, store_ring
from deepinfer.ops.cases import Maker
from tests.ops.small import SMALL

RING = 7
# Steps; each is a list of (request, tokens) with distinct requests in it.
steps = st.lists(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 12)), max_size=3, unique_by=lambda x: x[0]
    ),
    min_size=1,
    max_size=8,
).map(lambda all_steps: [step for step in all_steps if step])


def value_of(request, position):
    return 1000 * (request + 1) + position


def run(plan, back):
    """Feed a plan step by step; yields (request, position, values looked back at)."""
    make, lengths = Maker(SMALL), [0, 0, 0]
    ring = torch.full((4, RING), -1, dtype=torch.int64)
    for step in plan:
        batch = make.batch([(lengths[request], count) for request, count in step])
        batch.slots[1:] = torch.tensor([request + 1 for request, _ in step])
        requests = [request for request, count in step for _ in range(count)]
        values = torch.tensor(
            [value_of(r, p) for r, p in zip(requests, batch.positions.tolist(), strict=True)]
        )
        wanted = torch.full((len(values), len(back)), 0) + torch.tensor(back)
        wanted = wanted.minimum(batch.positions.unsqueeze(1))
        found = before(batch, ring, values, wanted)
        store_ring(ring, batch, values)
        for row, request in enumerate(requests):
            yield request, int(batch.positions[row]), found[row].tolist()
        for request, count in step:
            lengths[request] += count
            check_ring(ring, request, lengths[request])


def check_ring(ring, request, length):
    for position in range(max(0, length - RING), length):
        assert ring[request + 1, position % RING] == value_of(request, position)


@given(steps)
def test_looking_back_finds_what_each_position_stored(plan):
    back = list(range(RING))
    for request, position, found in run(plan, back):
        assert found == [value_of(request, position - min(b, position)) for b in back]


def test_a_slice_longer_than_the_ring_leaves_its_last_rows():
    make = Maker(SMALL)
    batch = make.batch([(3, 20)])
    ring = torch.zeros(2, RING, dtype=torch.int64)
    store_ring(ring, batch, batch.positions)
    assert sorted(ring[1].tolist()) == list(range(16, 23))


def test_rings_may_hold_rows_of_any_shape():
    make = Maker(SMALL)
    batch = make.batch([(5, 3)])
    ring, values = torch.zeros(2, RING, 2, 4), torch.randn(3, 2, 4)
    found = before(batch, ring, values, torch.tensor([[0, 1], [1, 2], [0, 5]]))
    assert found.shape == (3, 2, 2, 4)
    assert (found[1, 0] == values[0]).all()
    assert (found[0, 1] == 0).all()  # position 4: stored by nobody


def test_entries_are_found_through_the_page_table():
    view = torch.arange(5 * 4).view(5, 4, 1)  # 5 pages of 4 entries
    table = torch.tensor([[3, 1], [2, 4]])
    ids = torch.tensor([[0, 5, 3], [7, 4, 0]])
    assert gather_entries(view, table, ids).squeeze(-1).tolist() == [[12, 5, 15], [19, 16, 8]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
def test_kept_rows_start_where_the_first_of_them_stands(counts, data):
    make = Maker(SMALL)
    batch = make.batch([(10 * i, count) for i, count in enumerate(counts)])
    keep, slices, lower = [], [], batch.lower.clone()
    for first, last in batch.slices:
        cut = data.draw(st.integers(first, last))
        lower[first:last] = batch.positions[first] + cut - first
        if cut < last:
            slices.append((len(keep), len(keep) + last - cut))
            keep += range(cut, last)
    kept = batch.with_lower(lower).kept(torch.tensor(keep, dtype=torch.int64), tuple(slices))
    assert kept.positions.tolist() == batch.positions[keep].tolist()
    assert kept.token_slots.tolist() == batch.token_slots[keep].tolist()
    for first, last in slices:
        assert (kept.starts[first:last] == kept.positions[first]).all()
        assert (kept.ends[first:last] == kept.positions[last - 1] + 1).all()


@pytest.mark.parametrize("spans", [[(0, 3)], [(0, 3), (126, 4), (7, 1)]])
def test_made_batches_never_use_reserved_rows(spans):
    batch = Maker(SMALL).batch(spans)
    assert len(batch.positions) == sum(count for _, count in spans)
    assert (batch.token_slots > 0).all()
    assert batch.slots[0] == 0
    assert (batch.page_table[1:] > 0).all()
    assert len(batch.page_table[1:].unique()) == batch.page_table[1:].numel()
