"""The compressor in Triton against the reference, and the same bytes however a prompt is cut."""

from dataclasses import replace

import pytest
import torch

from deepinfer.ops.batch import PageViews
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.compress import compress
from deepinfer.ops.compress.cases import case
from deepinfer.ops.formats import decode_parts, decode_record
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops.compress import triton as kernel

pytestmark = pytest.mark.gpu
WIDE = replace(SMALL, hidden_size=5120, head_dim=512, qk_rope_head_dim=64, index_head_dim=128)
SPANS = [(0, 5), (131, 2), (12, 1), (60, 150)]


@pytest.mark.parametrize("ratio", [1, 2])
def test_stored_entries_agree_with_the_reference(gpu, ratio):
    states = []
    for run, pack in ((compress.reference, None), (kernel.compress, kernel.pack)):
        make = Maker(WIDE, device=gpu.device, seed=5)
        given = case(make, make.batch(SPANS), ratio=ratio)
        if pack is not None:
            given["weights"] = pack(given["weights"])
        run(**given)
        states.append(given)
    wanted, found = states
    records = wanted["records"]

    def error(left: torch.Tensor, right: torch.Tensor) -> float:
        return ((left.double() - right.double()).norm() / right.double().norm()).item()

    # Page 0 and slot 0 take what must go nowhere, in any order.
    pages, other = found["pages"], wanted["pages"]
    assert (
        error(
            decode_record(pages.latents[1:], records.latent),
            decode_record(other.latents[1:], records.latent),
        )
        < 5e-2
    )
    keys, other_keys = (
        decode_parts(p.key_codes[1:], p.key_scales[1:], records.index_key.format)
        for p in (pages, other)
    )
    assert error(keys, other_keys) < 5e-2
    assert pages.latents[1:].ne(other.latents[1:]).double().mean() < 1e-2
    if ratio == 2:
        torch.testing.assert_close(found["pairs"][1:], wanted["pairs"][1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ratio", [1, 2])
def test_any_chunking_leaves_the_same_bytes(gpu, ratio):
    """Long chunks meet rows of the pair ring that their first token still reads."""
    make = Maker(WIDE, device=gpu.device, seed=6)
    given = case(make, make.batch([(0, 200), (3, 20)]), ratio=ratio)
    given["weights"] = kernel.pack(given["weights"])
    batch = given["batch"]

    def fed(counts: list[int]) -> Case:
        pages = PageViews(*(torch.zeros_like(view) for view in given["pages"]))
        pairs = None if given["pairs"] is None else torch.zeros_like(given["pairs"])
        state, done = given | {"pages": pages, "pairs": pairs}, 0
        for count in counts:
            rows = slice(done, done + count)
            part = replace(
                batch,
                positions=batch.positions[rows],
                rows=batch.rows[rows],
                starts=torch.full_like(batch.starts[rows], done),
                ends=torch.full_like(batch.ends[rows], done + count),
                lower=batch.lower[rows],
                cached=batch.cached[rows],
                slices=((0, count),),
            )
            kernel.compress(**state | {"batch": part, "hidden": given["hidden"][rows]})
            done += count
        return state

    whole = fed([200])
    for counts in ([1] * 200, [7, 13, 14, 15, 29, 1, 2, 119], [64, 136], [27, 28, 145]):
        other = fed(counts)
        for name in PageViews._fields:
            one, two = getattr(whole["pages"], name), getattr(other["pages"], name)
            assert torch.equal(one[1:], two[1:]), name
        if ratio == 2:
            last = 199 % WIDE.pair_rows
            assert torch.equal(whole["pairs"][1:, last], other["pairs"][1:, last])


def test_entries_that_are_cached_stay_as_they_are(gpu):
    make = Maker(WIDE, device=gpu.device, seed=7)
    given = case(make, make.batch([(100, 40)]), ratio=1)
    given["weights"] = kernel.pack(given["weights"])
    given["batch"] = replace(given["batch"], cached=torch.full_like(given["batch"].cached, 120))
    table = given["batch"].page_table[1]
    before = given["pages"].latents[table].flatten(0, 1).clone()
    kernel.compress(**given)
    changed = (given["pages"].latents[table].flatten(0, 1) != before).any(-1)
    assert changed.nonzero().flatten().tolist() == list(range(120, 140))
