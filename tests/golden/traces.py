"""From what the network reports to the form in which golden traces store it.

Knows no limits and no files.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.ops.formats import decode_record
from deepinfer.ops.index_select import CandidateRule
from deepinfer.ops.index_select.reference import block_mask, head_scores
from tests.golden.runs import Observed, Session


class Router(NamedTuple):
    """ids ascending and weights in the same order, [layers, rows, k]."""

    ids: Tensor
    weights: Tensor


def router(observed: Observed, layers: int) -> Router:
    ids = torch.stack([observed["router_ids", layer] for layer in range(layers)])
    weights = torch.stack([observed["router_weights", layer] for layer in range(layers)])
    ascending = ids.sort(-1)
    return Router(ascending.values, weights.gather(-1, ascending.indices))


def candidates(observed: Observed, arch: Arch, entries: int) -> Tensor:
    """Candidate mask [rows, entries] uint8 of the candidate source layer."""
    assert arch.candidate_source_layer_id is not None
    blocks = observed["candidates", arch.candidate_source_layer_id]
    rule = CandidateRule(arch.candidate_topk_blocks, arch.candidate_block_size)
    return block_mask(blocks, rule, entries).to(torch.uint8)


def masked(scores: Tensor, positions: Tensor, ratio: int, allowed: Tensor | None) -> Tensor:
    """-inf where an entry is not visible to a position or no candidate."""
    entry = torch.arange(scores.shape[1])
    scores = scores.masked_fill(entry >= ((positions + 1) // ratio).unsqueeze(1), -torch.inf)
    return scores if allowed is None else scores.masked_fill(allowed == 0, -torch.inf)


def index_scores(session: Session, observed: Observed, layer: int, positions: Tensor) -> Tensor:
    """Masked scores of a selecting layer from its reported queries and the stored keys."""
    arch = session.network.arch
    owner = arch.layers[layer].kv_source
    assert owner is not None
    keys = session.index_keys(owner)
    queries = decode_record(observed["index_q", layer], session.network.records.index_key)
    scores = head_scores(queries, observed["index_w", layer], keys)
    allowed = None
    if arch.layers[layer].mode == "reindex":
        allowed = candidates(observed, arch, len(keys))
    return masked(scores, positions, arch.layers[layer].ratio, allowed)
