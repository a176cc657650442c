"""Selection and candidate blocks against brute force, over every small case with ties."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.cases import Maker
from deepinfer.ops.formats import decode_parts, decode_record
from deepinfer.ops.index_select import index_select
from deepinfer.ops.index_select.cases import case
from deepinfer.ops.index_select.reference import (
    CandidateRule,
    block_mask,
    candidate_blocks,
    head_scores,
    select,
)
from tests.ops.small import SMALL

LEVELS = (-1.0, 0.0, 2.0)


def padded(ids, width):
    return sorted(ids) + [-1] * (width - len(ids))


def best(scores, count):
    """Ids of the best finite scores; ties to the lowest id."""
    finite = [i for i, score in enumerate(scores) if score > -torch.inf]
    return sorted(finite, key=lambda i: (-scores[i], i))[:count]


def best_blocks(scores, visible, rule):
    blocks = -(-len(scores) // rule.size)
    tops = [-torch.inf] * blocks
    for i in range(visible):
        tops[i // rule.size] = max(tops[i // rule.size], scores[i])
    if visible:
        tops[(visible - 1) // rule.size] = torch.inf
    return best(tops, rule.limit)


def every_small_case(entries):
    """All score rows over three levels, with every number of visible entries."""
    for scores in itertools.product(LEVELS, repeat=entries):
        for visible in range(entries + 1):
            yield scores, visible


@pytest.mark.parametrize("entries", [1, 2, 5])
@pytest.mark.parametrize("topk", [1, 2, 3, 7])
def test_selection_equals_brute_force(entries, topk):
    rows = list(every_small_case(entries))
    scores = torch.tensor([scores for scores, _ in rows])
    visible = torch.tensor([count for _, count in rows])
    found = select(scores, visible, topk, blocks=None, rule=None, publish=False)
    expected = [padded(best(s[:v], topk), topk) for s, v in rows]
    assert found.ids.tolist() == expected
    assert found.blocks is None


@pytest.mark.parametrize("rule", [CandidateRule(1, 2), CandidateRule(2, 2), CandidateRule(2, 3),
                                  CandidateRule(4, 1), CandidateRule(9, 2)])  # fmt: skip
def test_candidate_blocks_equal_brute_force(rule):
    rows = list(every_small_case(6))
    scores = torch.tensor([scores for scores, _ in rows])
    visible = torch.tensor([count for _, count in rows])
    column = torch.arange(6)
    masked = scores.masked_fill(column >= visible.unsqueeze(1), -torch.inf)
    found = candidate_blocks(masked, visible, rule)
    expected = [padded(best_blocks(s, v, rule), rule.limit) for s, v in rows]
    assert found.tolist() == expected
    published = select(scores, visible, 2, blocks=None, rule=rule, publish=True)
    assert published.blocks is not None
    assert published.blocks.tolist() == expected
    assert published.ids.tolist() == [padded(best(s[:v], 2), 2) for s, v in rows]


def test_selection_stays_inside_candidates():
    rule, rows = CandidateRule(2, 2), list(every_small_case(5))
    for kept in ([0], [1, 2], [0, 2], []):
        scores = torch.tensor([scores for scores, _ in rows])
        visible = torch.tensor([count for _, count in rows])
        blocks = torch.tensor(padded(kept, 2)).expand(len(rows), 2)
        found = select(scores, visible, 3, blocks=blocks, rule=rule, publish=False)
        for (row, count), ids in zip(rows, found.ids.tolist(), strict=True):
            allowed = [s if i < count and i // 2 in kept else -torch.inf for i, s in enumerate(row)]
            assert ids == padded(best(allowed, 3), 3)


@given(st.integers(1, 30), st.integers(1, 5), st.sets(st.integers(0, 9), max_size=6))
def test_block_masks_mark_exactly_their_blocks(entries, size, blocks):
    count = -(-entries // size)
    kept = sorted(b for b in blocks if b < count)
    ids = torch.tensor([padded(kept, 6)])
    mask = block_mask(ids, CandidateRule(6, size), entries)
    assert mask.tolist() == [[i // size in kept for i in range(entries)]]


def test_negative_scores_of_zero_weight_heads_still_rank():
    """A score of zero beats a negative one: relu acts before the weight, not after."""
    queries = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    scores = head_scores(queries, torch.tensor([[2.0, -3.0]]), keys)
    assert scores.tolist() == [[2.0, -3.0, 0.0]]


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("quantised", [True, False])
def test_a_batch_selects_from_each_requests_own_pages(ratio, quantised):
    make = Maker(SMALL, quantised=quantised)
    batch = make.batch([(0, 20), (250, 6), (127, 3)])
    given_case = case(make, batch, ratio=ratio, publish=True)
    found = index_select.reference(**given_case)
    record, pages, rule = given_case["record"], given_case["pages"], given_case["rule"]
    entries = 128 // ratio
    for row, position in enumerate(batch.positions.tolist()):
        visible = (position + 1) // ratio
        table = batch.page_table[batch.rows[row]]
        at = [(table[i // entries], i % entries) for i in range(visible)] or [(0, 0)]
        codes = torch.stack([pages.key_codes[place] for place in at])
        scales = torch.stack([pages.key_scales[place] for place in at])
        keys = decode_parts(codes, scales, record.format)
        query = decode_record(given_case["queries"].records[row : row + 1], record)
        scores = head_scores(query, given_case["queries"].weights[row : row + 1], keys)[0].tolist()
        scores = scores[:visible]
        assert found.ids[row].tolist() == padded(best(scores, SMALL.index_topk), SMALL.index_topk)
        blocks = best_blocks(scores, visible, rule)
        assert found.blocks[row].tolist() == padded(blocks, rule.limit)


def test_published_candidates_restrict_a_later_layer():
    make = Maker(SMALL)
    batch = make.batch([(200, 5)])
    source = index_select.reference(**case(make, batch, publish=True))
    later = case(make, batch)
    free = index_select.reference(**later)
    bound = index_select.reference(**dict(later, blocks=source.blocks))
    inside = block_mask(source.blocks, later["rule"], 205)
    assert inside.gather(1, bound.ids).all()
    assert (bound.ids >= 0).all()
    assert not inside.gather(1, free.ids).all()


def test_rows_are_cut_into_chunks_without_a_trace(monkeypatch):
    make = Maker(SMALL)
    given_case = case(make, make.batch([(90, 40), (3, 1)]), publish=True)
    whole = index_select.reference(**given_case)
    monkeypatch.setattr("deepinfer.ops.index_select.reference._SCORE_BYTES", 3 * 256 * 8)
    parts = index_select.reference(**given_case)
    assert (parts.ids == whole.ids).all()
    assert (parts.blocks == whole.blocks).all()
