"""The compressor: any chunking stores the same bytes, at the right entries, and nothing else."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.batch import PageViews
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.compress import compress
from deepinfer.ops.compress.cases import case
from deepinfer.ops.compress.reference import pool_pair
from deepinfer.ops.formats import decode_record
from deepinfer.ops.products import rms_norm
from deepinfer.ops.rotation import rotate, rotation
from tests.ops.small import SMALL

cuts = st.lists(st.integers(1, 70), min_size=1, max_size=6)


def blank(given_case) -> Case:
    """The same call on zeroed state."""
    pages = PageViews(*(torch.zeros_like(view) for view in given_case["pages"]))
    pairs = None if given_case["pairs"] is None else torch.zeros_like(given_case["pairs"])
    return dict(given_case, pages=pages, pairs=pairs)


def feed(given_case, counts, run=compress.reference) -> Case:
    """Run the tokens of one request in chunks; returns the state they leave."""
    state, done, batch = blank(given_case), 0, given_case["batch"]
    for count in counts:
        rows = slice(done, done + count)
        part = replace(
            batch,
            positions=batch.positions[rows],
            rows=batch.rows[rows],
            starts=torch.full((count,), done),
            ends=torch.full((count,), done + count),
            lower=batch.lower[rows],
            cached=batch.cached[rows],
            slices=((0, count),),
        )
        run(**dict(state, batch=part, hidden=given_case["hidden"][rows]))
        done += count
    return state


@given(cuts, st.sampled_from([1, 2]), st.booleans())
def test_any_chunking_leaves_the_same_bytes(counts, ratio, quantised):
    make = Maker(SMALL, quantised=quantised)
    whole = case(make, make.batch([(0, sum(counts))]), ratio=ratio)
    expected, found = feed(whole, [sum(counts)]), feed(whole, counts)
    for name in PageViews._fields:
        one, other = getattr(expected["pages"], name), getattr(found["pages"], name)
        assert (one[1:] == other[1:]).all(), name
    if ratio == 2:
        last = (sum(counts) - 1) % SMALL.pair_rows
        assert (expected["pairs"][1:, last] == found["pairs"][1:, last]).all()


@pytest.mark.parametrize("ratio", [1, 2])
def test_entries_are_pooled_normed_and_rotated_at_their_first_token(ratio):
    make = Maker(SMALL, quantised=False)
    tokens = 2 * 128 + 5
    given_case = case(make, make.batch([(0, tokens)]), ratio=ratio)
    state, weights = feed(given_case, [tokens]), given_case["weights"]
    hidden = given_case["hidden"]
    values = hidden @ weights.wkv.T
    if ratio == 2:
        gates = (hidden @ weights.wgate.T)[: tokens // 2 * 2].unflatten(0, (-1, 2))
        values = values[: tokens // 2 * 2].unflatten(0, (-1, 2))
        values = (values * gates.softmax(dim=1)).sum(1)
    latent = rms_norm(values, weights.norm, SMALL.rms_norm_eps)
    by = rotation(ratio * torch.arange(len(latent)), given_case["freqs"])
    key = rotate(rms_norm(latent @ weights.wk.T, weights.k_norm, SMALL.rms_norm_eps), by)
    table, entries = given_case["batch"].page_table[1], 128 // ratio
    stored = state["pages"].latents[table].flatten(0, 1)[: len(latent)]
    keys = state["pages"].key_codes[table].flatten(0, 1)[: len(latent)]
    records = given_case["records"]
    torch.testing.assert_close(decode_record(stored, records.latent), rotate(latent, by),
                               rtol=1e-4, atol=1e-5)  # fmt: skip
    torch.testing.assert_close(decode_record(keys, records.index_key), key, rtol=1e-4, atol=1e-5)
    assert entries == state["pages"].entries
    rest = state["pages"].latents[table].flatten(0, 1)[len(latent) :]
    assert (rest == 0).all()


@pytest.mark.parametrize("ratio", [1, 2])
def test_several_requests_write_to_their_own_pages_only(ratio):
    make = Maker(SMALL)
    given_case = case(make, make.batch([(4, 9), (131, 2), (12, 1)]), ratio=ratio)
    before = given_case["pages"].latents.clone()
    compress.reference(**given_case)
    changed = (given_case["pages"].latents != before).any(-1)
    batch, entries = given_case["batch"], 128 // ratio
    expected = {
        (int(batch.page_table[row, entry // entries]), entry % entries)
        for row, first, last in ((1, 4, 13), (2, 131, 133), (3, 12, 13))
        for entry in range(-(-(first + 1 - ratio) // ratio), last // ratio)
    }
    found = {(page, row) for page, row in changed.nonzero().tolist() if page}
    assert found == expected


def test_a_pair_is_a_softmax_of_gates_by_hand():
    first = torch.tensor([[[1.0, 10.0], [0.0, 50.0]]])  # values, gates
    second = torch.tensor([[[3.0, 20.0], [0.0, -50.0]]])
    torch.testing.assert_close(pool_pair(first, second), torch.tensor([[2.0, 10.0]]))
