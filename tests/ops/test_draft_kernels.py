"""What the draft kernels refuse, and that a pass over the first places is one over the block."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from deepinfer.bench.slices import slice_arch
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import Operations
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


def test_on_hopper_the_release_gets_the_gluon_kernels_and_others_the_portable_ones():
    pytest.importorskip("triton")
    release = slice_arch("ep64", draft=True)
    names = "head", "draft_attention", "markov_draft"

    def chosen(arch: Any, device: str) -> list[str]:
        bound = Operations.bind(arch, CHECKPOINT, device)
        return [getattr(bound, name).implementation.name for name in names]

    assert chosen(release, "sm90") == ["hopper"] * 3
    assert chosen(release, "sm100") == ["triton"] * 3
    assert chosen(replace(release, sliding_window=256), "sm90") == ["hopper", "triton", "hopper"]


def test_the_gluon_kernels_say_what_they_do_not_serve():
    pytest.importorskip("triton")
    from deepinfer.ops.draft_attention import hopper as attention
    from deepinfer.ops.head import hopper as head
    from deepinfer.ops.markov_draft import hopper as markov

    facts: dict[str, Any] = {
        "arch": "sm90",
        "quantised": True,
        "head_dim": 512,
        "hidden": 5120,
        "window": 128,
        "draft_block": 5,
        "markov_rank": 256,
    }
    for kernel in (attention, head, markov):
        assert kernel.refuses(**facts) is None
        assert "sm100" in str(kernel.refuses(**dict(facts, arch="sm100")))
        assert kernel.refuses(**dict(facts, quantised=False)) is not None
    assert "rank 96" in str(markov.refuses(**dict(facts, markov_rank=96)))
    assert "rank 1024" in str(markov.refuses(**dict(facts, markov_rank=1024)))
    assert markov.refuses(**dict(facts, markov_rank=0)) is None  # without a drafter
    assert "hidden 100" in str(head.refuses(**dict(facts, hidden=100)))
    assert "head_dim 1024" in str(attention.refuses(**dict(facts, head_dim=1024)))
    assert "window 129" in str(attention.refuses(**dict(facts, window=129)))
    assert "block 17" in str(attention.refuses(**dict(facts, draft_block=17)))


@pytest.mark.parametrize("queries", [1, 3, 5])
def test_programs_take_as_many_queries_as_end_soonest(queries):
    pytest.importorskip("triton")
    from deepinfer.ops.draft_attention.hopper import queries_of

    for requests in (1, 8, 26, 32, 64, 100, 500):
        each = queries_of(requests, queries)
        assert 1 <= each <= queries
        if requests * queries <= 132:
            assert each == 1  # all fit at once
    assert queries_of(64, 5) == 3
    assert queries_of(64, 3) == 2


def test_192_tokens_a_program_are_taken_where_that_is_faster():
    pytest.importorskip("triton")
    from deepinfer.ops.head import triton as head

    for tokens in range(1, 600):
        width, takes = head.cost(tokens)
        assert width == head.choose(tokens).tokens
        assert takes == min(-(-tokens // w) * c for w, c in ((64, 192), (128, 282), (256, 563)))
