"""Inputs of `index_select`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select.reference import CandidateRule

PER_TOKEN = ("queries", "batch", "blocks")


def case(make: Maker, batch: Batch, *, ratio: int = 1, publish: bool = False) -> Case:
    """A selecting layer of `ratio` over pages full of random keys; no candidates given."""
    arch, tokens = make.arch, len(batch.positions)
    return {
        "queries": IndexQueries(
            make.stored(make.records.index_key, tokens, arch.index_n_heads),
            make.wide(tokens, arch.index_n_heads, size=arch.index_scale),
        ),
        "batch": batch,
        "pages": make.pages(batch, ratio),
        "blocks": None,
        "topk": arch.index_topk,
        "rule": CandidateRule(arch.candidate_topk_blocks, arch.candidate_block_size),
        "publish": publish,
        "record": make.records.index_key,
    }
