"""Inputs of `markov_draft`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.markov_draft.reference import MarkovWeights

PER_TOKEN = ("base", "hidden", "newest")


def case(make: Maker, batch: Batch) -> Case:
    """One draft block a token of the batch."""
    arch = make.arch
    assert arch.draft is not None, "drafts need an architecture with a drafter"
    requests, block, rank = len(batch.positions), arch.draft.block_size, arch.draft.markov_rank
    return {
        "base": make.wide(requests, block, arch.vocab_size),
        "hidden": make.normal(requests, block, arch.hidden_size),
        "newest": make.integers(0, arch.vocab_size, requests),
        "weights": MarkovWeights(
            embed=make.normal(arch.vocab_size, rank),
            head=make.plain(arch.vocab_size, rank),
            confidence=make.plain(1, arch.hidden_size + rank),
        ),
    }
