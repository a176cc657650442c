"""Window and selected attention against plain softmax over the keys a token may see."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.batch import store_ring
from deepinfer.ops.cases import Maker
from deepinfer.ops.formats import decode_record
from deepinfer.ops.rotation import rotate
from deepinfer.ops.sparse_attention import sparse_attention
from deepinfer.ops.sparse_attention.cases import case
from deepinfer.ops.sparse_attention.reference import BLOCK, attend, window_back
from tests.ops.small import SMALL


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=3),
       st.integers(1, 20), st.integers(0, 30))  # fmt: skip
def test_the_window_part_is_every_visible_position_once_in_order(spans, window, lower):
    batch = Maker(SMALL).batch(spans)
    batch = batch.with_lower(torch.full_like(batch.lower, lower).minimum(batch.positions))
    back, used = window_back(batch, window)
    assert back.shape == (len(batch.positions), window)
    assert (back >= 0).all()
    for row, position in enumerate(batch.positions.tolist()):
        first = max(0, position - window + 1, min(lower, position))
        seen = [
            position - b for b, u in zip(back[row].tolist(), used[row].tolist(), strict=True) if u
        ]
        assert seen == list(range(first, position + 1))
        assert used[row].tolist() == [True] * len(seen) + [False] * (window - len(seen))


def plain_attention(q, keys, sink, scale):
    """Softmax with a sink of one query [heads, dim] over keys [n, dim], float64."""
    q, keys, sink = q.double(), keys.double(), sink.double()
    scores = q @ keys.T * scale
    weights = torch.softmax(torch.cat((scores, sink[:, None]), dim=1), dim=1)[:, :-1]
    return weights @ keys


@pytest.mark.parametrize("slots", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_blocks_do_not_change_the_softmax(slots):
    q, keys, sink = torch.randn(4, 3, 32), torch.randn(4, slots, 32), torch.randn(3)
    visible = torch.rand(4, slots) < 0.7
    visible[1] = False
    visible[2, :BLOCK] = False
    found = attend(q, keys, visible, sink, 0.3)
    assert (found[1] == 0).all()
    for row in (0, 2, 3):
        expected = plain_attention(q[row], keys[row, visible[row]], sink, 0.3)
        torch.testing.assert_close(found[row].double(), expected, rtol=1e-5, atol=1e-6)


def test_numerators_are_rounded_and_the_denominator_is_not():
    # Two keys with weights 1 and w = exp(-0.1) = 0.9048; bf16(w) = 0.90625.
    q = torch.tensor([[[1.0]]], dtype=torch.bfloat16)
    keys = torch.tensor([[[0.0], [-0.1]]])
    found = attend(q, keys, torch.ones(1, 2, dtype=torch.bool), torch.full((1,), -1e9), 1.0)
    weight = math.exp(-0.1)
    expected = -0.1 * 0.90625 / (1 + weight)
    assert found.item() == torch.tensor(expected).bfloat16().item()
    wide = attend(q.float(), keys, torch.ones(1, 2, dtype=torch.bool), torch.full((1,), -1e9), 1.0)
    assert wide.item() == pytest.approx(-0.1 * weight / (1 + weight), rel=1e-6)


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_every_token_sees_its_window_and_its_selection(ratio):
    make = Maker(SMALL, quantised=False)
    batch = make.batch([(0, 40), (130, 30), (300, 1)])
    given_case = case(make, batch, ratio=ratio)
    found = sparse_attention.reference(**given_case)
    window, layout = SMALL.sliding_window, make.records
    for row in (0, 5, 15, 16, 39, 40, 55, 69, 70):
        position, start = int(batch.positions[row]), int(batch.starts[row])
        keys = []
        for seen in range(max(0, position - window + 1), position + 1):
            if seen >= start:
                keys.append(given_case["records"][row - (position - seen)])
            else:
                slot = int(batch.token_slots[row])
                keys.append(given_case["ring"][slot, seen % SMALL.ring_rows])
        decoded = decode_record(torch.stack(keys), layout.window)
        if ratio:
            ids = given_case["ids"][row]
            pages, entries = given_case["pages"], 128 // ratio
            table = batch.page_table[batch.rows[row]]
            chosen = [
                pages.latents[table[i // entries], i % entries] for i in ids[ids >= 0].tolist()
            ]
            assert len(chosen) == min(SMALL.index_topk, (position + 1) // ratio)
            if chosen:
                latents = decode_record(torch.stack(chosen), layout.latent)
                decoded = torch.cat((decoded, latents))
        expected = plain_attention(
            given_case["q"][row], decoded, given_case["sink"], SMALL.softmax_scale
        )
        by = given_case["by"].rows(torch.tensor([row]))
        expected = rotate(expected.float().unsqueeze(0), by, inverse=True)
        torch.testing.assert_close(found[row : row + 1], expected, rtol=1e-5, atol=2e-6)


cuts = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@given(cuts, st.sampled_from([0, 2]), st.booleans())
def test_chunked_prefill_equals_one_shot_bit_by_bit(counts, ratio, quantised):
    make = Maker(SMALL, quantised=quantised)
    whole_batch = make.batch([(0, sum(counts))])
    whole = case(make, whole_batch, ratio=ratio)
    expected = sparse_attention.reference(**whole)
    ring, done = torch.zeros_like(whole["ring"]), 0
    for count in counts:
        rows = slice(done, done + count)
        batch = replace(
            whole_batch,
            positions=whole_batch.positions[rows],
            rows=whole_batch.rows[rows],
            starts=torch.full((count,), done),
            ends=torch.full((count,), done + count),
            lower=whole_batch.lower[rows],
            slices=((0, count),),
        )
        part = dict(
            whole, batch=batch, ring=ring, by=whole["by"].rows(torch.arange(done, done + count))
        )
        for name in ("q", "records", "ids"):
            part[name] = None if whole[name] is None else whole[name][rows]
        assert (sparse_attention.reference(**part) == expected[rows]).all()
        store_ring(ring, batch, part["records"])
        done += count


def test_a_lower_bound_hides_older_window_keys_but_no_selected_entry():
    make = Maker(SMALL, quantised=False)
    batch = make.batch([(60, 1)])
    given_case = case(make, batch, ratio=1)
    bounded = dict(given_case, batch=batch.with_lower(torch.tensor([60])))
    ids = given_case["ids"][0]
    pages, table = given_case["pages"], batch.page_table[1]
    latents = torch.stack([pages.latents[table[i // 128], i % 128] for i in ids[ids >= 0].tolist()])
    keys = torch.cat(
        (
            decode_record(given_case["records"], make.records.window),
            decode_record(latents, make.records.latent),
        )
    )
    expected = plain_attention(given_case["q"][0], keys, given_case["sink"], SMALL.softmax_scale)
    expected = rotate(expected.float().unsqueeze(0), given_case["by"], inverse=True)
    found = sparse_attention.reference(**bounded)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert not torch.allclose(sparse_attention.reference(**given_case), expected, atol=1e-3)
