"""What the draft kernels refuse, and that a pass over the first places is one over the block."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from deepinfer.ops.cases import Maker
from deepinfer.ops.markov_draft import MarkovWeights, markov_draft
from deepinfer.ops.markov_draft.cases import case as markov_case
from deepinfer.ops.noise import Purpose
from deepinfer.ops.sample import Drawing, SamplerTable
from deepinfer.ops.sample.cases import admitted
from deepinfer.step import RowSampling
from tests.ops.small import SMALL

ANCHORS = [(p, 1) for p in (0, 3, 15, 40)]


def drawing(rows: int) -> Drawing:
    table = SamplerTable(rows + 1)
    for row in range(1, rows + 1):
        table.admit(admitted(row, 3, RowSampling(temperature=row % 3 / 2)))
    index = torch.arange(1, rows + 1)
    return Drawing(table.state, index, index + 5, Purpose.TARGET, None)


@pytest.mark.parametrize("drawn", [False, True])
def test_the_first_places_are_those_of_a_whole_block(drawn):
    make = Maker(replace(SMALL, vocab_size=1201))
    given = markov_case(make, make.batch(ANCHORS))
    by = drawing(len(ANCHORS)) if drawn else None
    whole = markov_draft.reference(**given, drawing=by)
    for count in (1, 3):
        short = given | {"base": given["base"][:, :count], "hidden": given["hidden"][:, :count]}
        found = markov_draft.reference(**short, drawing=by, keep=False)
        assert torch.equal(found.tokens, whole.tokens[:, :count])
        assert torch.equal(found.confidence, whole.confidence[:, :count])
        assert not found.logits.numel()


def test_the_kernels_say_what_they_do_not_serve():
    pytest.importorskip("triton")
    from deepinfer.ops.draft_attention import triton as attention
    from deepinfer.ops.markov_draft import triton as markov

    facts: dict[str, Any] = {"arch": "sm90", "quantised": True, "head_dim": 512, "markov_rank": 256}
    assert attention.refuses(**facts) is None
    assert markov.refuses(**facts) is None
    assert "cpu" in str(attention.refuses(**dict(facts, arch="cpu")))
    assert "cpu" in str(markov.refuses(**dict(facts, arch="cpu")))
    assert "quantised" in str(attention.refuses(**dict(facts, quantised=False)))
    assert "bf16" in str(markov.refuses(**dict(facts, quantised=False)))
    assert "head_dim 96" in str(attention.refuses(**dict(facts, head_dim=96)))
    assert "rank 48" in str(markov.refuses(**dict(facts, markov_rank=48)))
    assert markov.refuses(**dict(facts, markov_rank=0)) is None  # without a drafter
    plain = MarkovWeights(*(torch.zeros(4, 16) for _ in range(3)))
    with pytest.raises(ValueError, match="embed is torch.float32"):
        markov.pack(plain)
