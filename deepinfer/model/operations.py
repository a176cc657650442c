"""The operations of the network, each bound to one implementation for good.

Knows no weights: loading asks it how to pack them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from deepinfer.arch import Arch
from deepinfer.errors import ConfigError
from deepinfer.model.numerics import Numerics
from deepinfer.ops.add_outputs import add_outputs
from deepinfer.ops.angles import angles
from deepinfer.ops.attention_inputs import attention_inputs
from deepinfer.ops.compress import compress
from deepinfer.ops.draft_attention import draft_attention
from deepinfer.ops.embed_streams import embed_streams
from deepinfer.ops.engram_gate import engram_gate
from deepinfer.ops.engram_rows import engram_rows
from deepinfer.ops.engram_values import engram_values
from deepinfer.ops.experts import experts
from deepinfer.ops.grouped_output import grouped_output
from deepinfer.ops.head import head
from deepinfer.ops.index_inputs import index_inputs
from deepinfer.ops.index_select import index_select
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.low_rank import low_rank
from deepinfer.ops.markov_draft import markov_draft
from deepinfer.ops.mhc_boundary import mhc_boundary
from deepinfer.ops.mhc_collapse import mhc_collapse
from deepinfer.ops.mhc_update import mhc_update
from deepinfer.ops.norm_quantise import norm_quantise
from deepinfer.ops.registry import Bound, Op
from deepinfer.ops.route import route
from deepinfer.ops.shared_expert import shared_expert
from deepinfer.ops.sparse_attention import sparse_attention
from deepinfer.ops.stream_mean import stream_mean
from deepinfer.ops.write_records import write_records

OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        add_outputs,
        angles,
        attention_inputs,
        compress,
        draft_attention,
        embed_streams,
        engram_gate,
        engram_rows,
        engram_values,
        experts,
        grouped_output,
        head,
        index_inputs,
        index_select,
        linear_fp8,
        low_rank,
        markov_draft,
        mhc_boundary,
        mhc_collapse,
        mhc_update,
        norm_quantise,
        route,
        shared_expert,
        sparse_attention,
        stream_mean,
        write_records,
    )
}


@dataclass(frozen=True)
class Operations:
    """One bound implementation an operation; see the operation's reference for its meaning."""

    add_outputs: Bound
    angles: Bound
    attention_inputs: Bound
    compress: Bound
    draft_attention: Bound
    embed_streams: Bound
    engram_gate: Bound
    engram_rows: Bound
    engram_values: Bound
    experts: Bound
    grouped_output: Bound
    head: Bound
    index_inputs: Bound
    index_select: Bound
    linear_fp8: Bound
    low_rank: Bound
    markov_draft: Bound
    mhc_boundary: Bound
    mhc_collapse: Bound
    mhc_update: Bound
    norm_quantise: Bound
    route: Bound
    shared_expert: Bound
    sparse_attention: Bound
    stream_mean: Bound
    write_records: Bound

    @classmethod
    def bind(
        cls,
        arch: Arch,
        numerics: Numerics,
        device_arch: str,
        prefer: Mapping[str, str] | None = None,
    ) -> Operations:
        """Choose every implementation from static facts.

        Args:
            arch: the architecture; its sizes are facts.
            numerics: fast implementations serve quantised numerics only.
            device_arch: "cpu", "sm90", ...
            prefer: operation name -> implementation name; "*" is the default for all others.

        Raises:
            ConfigError: `prefer` names an unknown operation.
            NoImplementation: a named implementation does not exist or does not serve.
        """
        wishes = dict(prefer or {})
        default = wishes.pop("*", "auto")
        if unknown := sorted(set(wishes) - set(OPS)):
            raise ConfigError(f"ops: unknown operation(s) {unknown}; there are {sorted(OPS)}")
        facts: dict[str, object] = {
            "arch": device_arch,
            "quantised": numerics.quantised,
            "hidden": arch.hidden_size,
            "inner": arch.moe_intermediate_size,
            "head_dim": arch.head_dim,
            "heads": arch.num_attention_heads,
            "window": arch.sliding_window,
            "draft_block": 0 if arch.draft is None else arch.draft.block_size,
            "rank": arch.q_lora_rank,
            "o_rank": arch.o_lora_rank,
            "o_groups": arch.o_groups,
            "streams": arch.hc_mult,
            "linear_shapes": _linear_shapes(arch),
            "index_shape": (arch.index_n_heads, arch.index_head_dim),
            "index_most": max(arch.index_topk, arch.candidate_topk_blocks),
            "markov_rank": 0 if arch.draft is None else arch.draft.markov_rank,
        }
        chosen = {
            f.name: OPS[f.name].bind(wishes.get(f.name, default), **facts) for f in fields(cls)
        }
        return cls(**chosen)


def _linear_shapes(arch: Arch) -> tuple[tuple[int, int], ...]:
    """[out, K] of every matrix that `linear_fp8` multiplies with."""
    d, rank = arch.hidden_size, arch.q_lora_rank
    shapes = [
        (rank, d),
        (arch.num_attention_heads * arch.head_dim, rank),
        (arch.head_dim, d),
        (arch.index_n_heads * arch.index_head_dim, rank),
    ]
    if arch.engram is not None:
        shapes.append(((arch.hc_mult + 1) * d, arch.engram.columns * arch.engram.head_dim))
    if arch.draft is not None:
        shapes.append((d, len(arch.draft.target_layer_ids) * d))
    return tuple(shapes)
