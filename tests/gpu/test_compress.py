"""The compressor with Triton products against the reference: pages and pair ring."""

from dataclasses import replace

import pytest
import torch

from deepinfer.ops.cases import Maker
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
