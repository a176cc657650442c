"""How many bytes a step needs beside weights and pools at most, from shapes alone.

What the kernels of an NVIDIA GPU take, with the results of the step before; references take more.
Layers hold some tensors all the time and others by turns. Knows nothing of what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.arch import Arch, Records
from deepinfer.model.operations import Operations
from deepinfer.ops.sample.rules import RULED_BYTES

_WORD, _BF16, _FP32 = 8, 2, 4
_FEW = 512  # tokens up to which products leave sums of segments of K
_SEGMENTS = 4  # that there are at most, in columns as wide as the hidden size
_LEAST_SEGMENT = 256  # columns of a segment of other products
_TILE = 16  # tokens of the narrowest tile
_FEW_EXPERTS = 12  # up to which each computes all tokens, if those are few
_CHOSEN = 1 << 24  # logits that are sampled from at once,
_CHOOSING = 64  # bytes for each: under rules, in order, as probabilities
_BY_LAW = 64  # bytes a logit where laws are compared


@dataclass(frozen=True)
class StepSize:
    """What the memory of a step depends on.

    Attributes:
        tokens: that the layers compute, drafts and prompts together.
        samples: rows of logits: one for every row that generates and every draft verified.
        proposed: rows that drafts are proposed for; 0 without drafts.
        longest: tokens of the longest request.
        by_law: drafts are verified by the laws they were drawn from.
    """

    tokens: int
    samples: int
    proposed: int
    longest: int
    by_law: bool = False


def step_bytes(arch: Arch, records: Records, ops: Operations, step: StepSize) -> int:
    """Bound on the bytes that a step takes, the results of the step before included.

    Args:
        arch: the architecture.
        records: formats of the cache.
        ops: they say what scratch memory they take.
        step: its sizes.
    """
    logits, block = arch.vocab_size * _FP32, 0 if arch.draft is None else arch.draft.block_size
    drafted = step.proposed * block
    own, before = step.tokens * _result(arch), step.samples * logits
    parts = (
        _network(arch, records, ops, step.tokens, step.longest),
        own + before + _choosing(arch, step),
        own + before + drafted * 3 * logits,
        own + before + _network(arch, records, ops, drafted, step.longest),
    )
    return max(parts) + own + before


def _choosing(arch: Arch, step: StepSize) -> int:
    """Of sampling, or of log-probabilities of prompts, of which as many are computed at once."""
    rows, law = max(step.samples, step.tokens), _BY_LAW if step.by_law else 0
    ruled = step.samples * (_CHOOSING * arch.vocab_size + 3 * _WORD * step.longest)
    chosen = min(rows * arch.vocab_size, _CHOSEN) * _CHOOSING
    return chosen + min(ruled, RULED_BYTES) + step.samples * arch.vocab_size * law


def table_bytes(rows: int, longest: int, pages: int) -> int:
    """Bytes of what the device knows of requests: tokens and pages of each.

    Args:
        rows: of the table.
        longest: tokens of a request.
        pages: of a request.
    """
    return rows * (longest + pages) * _WORD


def _network(arch: Arch, records: Records, ops: Operations, tokens: int, longest: int) -> int:
    """Of all layers over so many tokens; some tensors have the rows of a tile at least."""
    if not tokens:
        return 0
    tokens = -(-tokens // _TILE) * _TILE
    by_turns = max(_attention(arch, records), _experts(arch), _engram(arch))
    sums = min(tokens, _FEW) * _SEGMENTS * arch.hidden_size * _FP32
    scratch = max(
        getattr(ops, name).implementation.workspace(arch=arch, tokens=tokens, longest=longest)
        for name in Operations.__dataclass_fields__
    )
    return tokens * (_held(arch, records) + by_turns) + sums + scratch


def _pair(columns: int) -> int:
    """A row of FP8 codes with their scales."""
    return columns + columns // 32


def _normed(columns: int) -> int:
    """A row in bf16, and quantised."""
    return columns * _BF16 + _pair(columns)


def _features(arch: Arch) -> int:
    """Bytes a token of what drafts are made from."""
    return 0 if arch.draft is None else len(arch.draft.target_layer_ids) * arch.hidden_size * _BF16


def _result(arch: Arch) -> int:
    """Bytes a token that are left when the layers are through."""
    return arch.hidden_size * _BF16 + _features(arch)


def _held(arch: Arch, records: Records) -> int:
    """Bytes a token that stay over the parts of a layer.

    Streams before the layer and behind both boundaries, both sub-layers' inputs and outputs,
    features for drafts, selections, copies of windows, positions and the like.
    """
    hidden, m = arch.hidden_size, arch.hc_mult
    streams = 3 * (m * hidden * _BF16 + (2 * m + m * m) * _FP32)
    between = 2 * _normed(hidden) + 2 * hidden * _BF16
    lists = arch.index_topk * len(arch.index_source_layer_ids) + arch.candidate_topk_blocks
    windows = 2 * records.window.bytes * arch.num_hidden_layers
    ngram = 1 if arch.engram is None else arch.engram.max_ngram_size
    small = (16 + ngram) * _WORD + 4 * arch.qk_rope_head_dim * _FP32
    return streams + between + _features(arch) + lists * _WORD + windows + small


def _attention(arch: Arch, records: Records) -> int:
    """Bytes a token of the attention sub-layer: queries, rotated or attended to, and the rest."""
    heads = 2 * arch.num_attention_heads * arch.head_dim * _BF16
    low = _normed(arch.q_lora_rank) + arch.head_dim * _BF16 + 2 * records.window.bytes
    key = arch.index_head_dim * _BF16 + records.index_key.bytes + 2 * _FP32
    output = arch.o_groups * arch.o_lora_rank
    # Either the indexer works beside the queries, or outputs are projected.
    beside = max(arch.index_n_heads * key, output * (_FP32 + _BF16) + _pair(output))
    segments = arch.hidden_size // _LEAST_SEGMENT
    compressor = 2 * arch.head_dim * _FP32 * (1 + segments)
    return max(compressor, heads + low + beside)


def _experts(arch: Arch) -> int:
    """Bytes a token of the experts: routing, inputs, middles and outputs of each choice."""
    hidden, inner = arch.hidden_size, arch.moe_intermediate_size
    segments = arch.hidden_size // _LEAST_SEGMENT
    routing = arch.n_routed_experts * _FP32 * (1 + segments) + arch.num_experts_per_tok * 8 * _WORD
    all_of_them = arch.n_routed_experts if arch.n_routed_experts <= _FEW_EXPERTS else 0
    choice = inner * _BF16 + inner // 16 + hidden * _BF16
    shared = 2 * inner * (_BF16 + _FP32) + _pair(inner) + hidden * _BF16
    own = hidden * _BF16 + hidden // 32 + hidden * (_FP32 + _BF16)
    choices = max(arch.num_experts_per_tok, all_of_them)
    return routing + choices * choice + shared + own


def _engram(arch: Arch) -> int:
    """Bytes a token of the n-gram memory: rows, values, their projection, streams twice."""
    if arch.engram is None:
        return 0
    columns, width = arch.engram.columns, arch.engram.columns * arch.engram.head_dim
    looked_up = columns * 2 * _WORD + 2 * _pair(width) + width * (_BF16 + 1)
    projected = (arch.hc_mult + 1) * arch.hidden_size * _BF16
    return looked_up + projected + 2 * arch.hc_mult * arch.hidden_size * _BF16
