"""One call of every operation with Triton kernels, on meta tensors of the release's sizes.

Used to list the launches; nothing is computed. Knows nothing of compilers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from deepinfer.arch import Record, Records
from deepinfer.ops import triton_leading, triton_rows
from deepinfer.ops.add_outputs import triton as add_outputs
from deepinfer.ops.angles import triton as angles
from deepinfer.ops.attention_inputs import triton as attention_inputs
from deepinfer.ops.batch import Batch, PageViews, RingPlaces
from deepinfer.ops.compress import triton as compress
from deepinfer.ops.conclude import Group, RowTable
from deepinfer.ops.conclude import triton as conclude
from deepinfer.ops.decoding import triton as decoding
from deepinfer.ops.draft_attention import hopper as draft_hopper
from deepinfer.ops.draft_attention import triton as draft_attention
from deepinfer.ops.draft_start import triton as draft_start
from deepinfer.ops.draft_store import triton as draft_store
from deepinfer.ops.embed_streams import triton as embed_streams
from deepinfer.ops.engram_gate import triton as engram_gate
from deepinfer.ops.engram_rows import triton as engram_rows
from deepinfer.ops.engram_rows.reference import EngramHash
from deepinfer.ops.engram_values import triton as engram_values
from deepinfer.ops.experts import triton as experts
from deepinfer.ops.experts.packing import PackedExperts, PackedMatrix
from deepinfer.ops.formats import Quantised
from deepinfer.ops.gluon_best import best
from deepinfer.ops.grouped_output import triton as grouped_output
from deepinfer.ops.grouped_output.packing import PackedLow
from deepinfer.ops.head import hopper as head_hopper
from deepinfer.ops.head import triton as head
from deepinfer.ops.index_inputs import triton as index_inputs
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select import CandidateRule
from deepinfer.ops.index_select import hopper as index_hopper
from deepinfer.ops.index_select import triton as index_select
from deepinfer.ops.linear_fp8 import triton as linear
from deepinfer.ops.low_rank import triton as low_rank
from deepinfer.ops.markov_draft import MarkovWeights
from deepinfer.ops.markov_draft import hopper as markov_hopper
from deepinfer.ops.markov_draft import triton as markov_draft
from deepinfer.ops.mhc_boundary import triton as boundary
from deepinfer.ops.mhc_collapse import triton as mhc_collapse
from deepinfer.ops.mhc_update import triton as mhc_update
from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.noise import Purpose
from deepinfer.ops.norm_quantise import triton as norm_quantise
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.route import triton as route
from deepinfer.ops.sample import Drawing
from deepinfer.ops.sample import triton as sampling
from deepinfer.ops.sample.state import SamplerTable, Uses
from deepinfer.ops.shared_expert import triton as shared_expert
from deepinfer.ops.sparse_attention import triton as sparse_attention
from deepinfer.ops.stream_mean import triton as stream_mean
from deepinfer.ops.write_records import triton as write_records

HIDDEN, INNER, VOCAB, CHOICES, LIMIT, EPS = 5120, 2304, 129280, 6, 10.0, 1e-6
HEADS, HEAD_DIM, ROPE, RANK, GROUPS, LOW = 64, 512, 64, 1280, 8, 1024
INDEX_HEADS, INDEX_DIM = 32, 128
BLOCK, MARKOV = 5, 256  # of drafts
RECORDS = Records(
    Record("fp8_ue8m0_32", HEAD_DIM),
    Record("fp4_e4m3_16", HEAD_DIM),
    Record("fp4_ue8m0_32", INDEX_DIM),
)
RULE = CandidateRule(2048, 8)
EXPERTS = (6, 48, 384)  # of an EP64 and an EP8 rank, and of a whole layer
LINEARS = (
    (RANK, HIDDEN),
    (HEADS * HEAD_DIM, RANK),
    (HEAD_DIM, HIDDEN),
    (INDEX_HEADS * INDEX_DIM, RANK),
    (HIDDEN, GROUPS * LOW),
    (5 * HIDDEN, 24 * 256),  # Engram
    (HIDDEN, 3 * HIDDEN),  # drafter
)


def _bf16(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def _fp32(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="meta")


def _bytes(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8, device="meta")


def _words(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="meta")


def _pair(tokens: int, columns: int) -> Quantised:
    return Quantised(_bytes(tokens, columns), _bytes(tokens, columns // 32))


def _linear(out: int, columns: int) -> linear.PackedLinear:
    codes = _bytes(out // 64, columns // 128, 64, 128)
    return linear.PackedLinear(codes, _words(out // 32, columns // 128))


def _low(out: int, columns: int) -> PackedLow:
    codes = _bytes(out // 64, columns // 128, 4, 128, 16)
    return PackedLow(codes, _words(out // 32, columns // 128))


def _experts(count: int) -> PackedExperts:
    def matrix(out: int, columns: int) -> PackedMatrix:
        blocks, steps = out // 64, columns // 128
        codes = _bytes(count, blocks, steps, 2, 128, 16)
        return PackedMatrix(codes, _words(count, blocks, steps, 64), _fp32(count, out))

    return PackedExperts(matrix(2 * INNER, HIDDEN), matrix(HIDDEN, INNER), INNER)


def _hyper() -> boundary.PackedHyper:
    return boundary.PackedHyper(_bf16(64, 4 * HIDDEN), _fp32(24), _fp32(3), _fp32(HIDDEN))


def _longs(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def _batch(tokens: int) -> Batch:
    return Batch(
        **{n: _longs(tokens) for n in ("positions", "rows", "starts", "ends", "lower", "cached")},
        slots=_longs(4),
        page_table=_longs(4, 64),
        slices=(),
        max_len=8192,
        alone=False,
    )


def _pages(ratio: int) -> PageViews:
    entries = 128 // ratio
    key = RECORDS.index_key
    return PageViews(
        _bytes(9, entries, RECORDS.latent.bytes),
        _bytes(9, entries, key.code_bytes),
        _bytes(9, entries, key.scale_bytes),
    )


def _attention(
    tokens: int, by: Rotation, *, ratio: int, whole: bool = False
) -> Callable[[], object]:
    """Tokens that stand alone, or a `whole` slice."""
    batch = replace(_batch(tokens), slices=((0, tokens),) if whole else ())
    return partial(
        sparse_attention.in_runs if whole else sparse_attention.sparse_attention,
        _bf16(tokens, HEADS, HEAD_DIM),
        _bytes(tokens, RECORDS.window.bytes),
        _bytes(4, 140, RECORDS.window.bytes),
        _longs(tokens, 512) if ratio else None,
        _pages(ratio) if ratio else None,
        _fp32(HEADS),
        batch,
        by,
        window=128,
        scale=HEAD_DIM**-0.5,
        layout=RECORDS,
    )


def _owner(tokens: int, *, ratio: int) -> dict[str, Callable[[], object]]:
    gated = ratio == 2
    weights = compress.PackedCompressor(
        _bf16(HEAD_DIM * ratio, HIDDEN), gated, _bf16(HEAD_DIM), _bf16(INDEX_DIM, HEAD_DIM),
        _bf16(INDEX_DIM),
    )  # fmt: skip
    queries = IndexQueries(
        _bytes(tokens, INDEX_HEADS, RECORDS.index_key.bytes), _fp32(tokens, INDEX_HEADS)
    )
    pairs = _fp32(4, 13, 2, HEAD_DIM) if gated else None
    batch, pages = _batch(tokens), _pages(ratio)
    return {
        f"compress ratio {ratio}": partial(
            compress.compress, _bf16(tokens, HIDDEN), weights, batch, pairs, pages,
            _fp32(ROPE // 2), eps=EPS, records=RECORDS,
        ),
        **{
            f"index {kind} ratio {ratio} {module.__name__}": partial(
                module.index_select, queries, batch, pages, blocks,
                topk=512, rule=RULE, publish=blocks is None, record=RECORDS.index_key,
            )
            for module in (index_hopper, index_select)
            for kind, blocks in (("of all", None), ("within", _longs(tokens, RULE.limit)))
        },
    }  # fmt: skip


def _streams(t: int) -> dict[str, Callable[[], object]]:
    """What touches the residual streams once or twice a step."""
    streams, gains = _bf16(t, 4, HIDDEN), _bf16(4, HIDDEN)
    pending = Pending(_bf16(t, HIDDEN), _fp32(t, 4), _fp32(t, 4, 4))
    live = torch.empty(t, dtype=torch.bool, device="meta")
    table = EngramHash(_longs(VOCAB), _longs(4), _longs(24), _longs(24), pad=2)
    return {
        "update": partial(mhc_update.mhc_update, streams, pending),
        "collapse": partial(mhc_collapse.mhc_collapse, streams, _fp32(t, 4), _bf16(HIDDEN), EPS),
        "engram values": partial(
            engram_values.engram_values, _bytes(t, 24, 256), _bytes(t, 24, 8), dtype=torch.bfloat16
        ),
        "engram rows": partial(engram_rows.engram_rows, _longs(t, 4), table),
        "engram gate": partial(
            engram_gate.engram_gate, streams, _bf16(t, 5 * HIDDEN), gains, gains, live, eps=EPS
        ),
    }


def _rows(count: int) -> dict[str, Callable[[], object]]:
    """Begin and end of a decoding step with three drafts a row, and what is small within."""
    each, drafts = _longs(4), 3
    ended = torch.empty(4, dtype=torch.bool, device="meta")
    state: Any = SimpleNamespace(
        tokens=_longs(4, 8192), length=each, limit=each, lower=each, cached=each, drafts=each,
        cap=each, ended=ended, confidence=_fp32(4, drafts), budget=_longs(1),
        temperature=torch.empty(drafts, dtype=torch.float64, device="meta"),
    )  # fmt: skip
    state.slot = state.decoder_start = each
    table = RowTable(state.tokens, each, each, each, ended, each, _longs(4, 8))
    group = Group(_longs(count), _longs(count), _longs(count), each)
    chosen, flags = _longs(count * (1 + drafts)), _words(count * (1 + drafts))
    return {
        "decoding": partial(
            decoding.decoding, state, _longs(count), places=count * drafts, ngram=4
        ),
        "sum of outputs": partial(
            add_outputs.add_outputs, _fp32(count, HIDDEN), _fp32(count, HIDDEN),
            dtype=torch.bfloat16,
        ),
        "draft start": partial(
            draft_start.draft_start, state, _longs(count), block=BLOCK, noise=128_799
        ),
        "draft store": partial(
            draft_store.draft_store, state, _longs(count), _longs(drafts, count).T,
            _fp32(count, drafts),
        ),
        "angles": partial(angles.angles, _longs(count), _fp32(ROPE // 2)),
        "embeddings": partial(
            embed_streams.embed_streams, _longs(count, 4)[:, 0], _bf16(VOCAB, HIDDEN),
            streams=4, dtype=torch.bfloat16,
        ),
        "mean of streams": partial(stream_mean.stream_mean, _bf16(count, 4, HIDDEN)),
        "window records": partial(
            write_records.write_records, _bytes(4, 140, RECORDS.window.bytes),
            RingPlaces(_longs(count), _longs(count)), _bytes(count, RECORDS.window.bytes),
        ),
        "conclude": partial(conclude.conclude, table, group, chosen, flags, cap=drafts),
        "conclude without masks": partial(
            conclude.conclude, table, group._replace(legal=None), chosen, flags, cap=drafts
        ),
    }  # fmt: skip


def _drafts(requests: int) -> dict[str, Callable[[], object]]:
    """Attention and experts of draft blocks and the Markov loop over all their places."""
    by, rows = Rotation(*[_fp32(requests * BLOCK, ROPE // 2)] * 2), _longs(requests)
    weights = MarkovWeights(_bf16(VOCAB, MARKOV), _bf16(VOCAB, MARKOV), _bf16(1, HIDDEN + MARKOV))
    state = replace(SamplerTable(4, "meta").state, uses=Uses(noise=True))
    base, hidden = _fp32(requests, BLOCK, VOCAB), _bf16(requests, BLOCK, HIDDEN)
    draft, wide = (
        partial(module.markov_draft, base, hidden, rows, weights, keep=False)
        for module in (markov_draft, markov_hopper)
    )
    return {
        **{
            f"draft attention, {module.__name__.rpartition('.')[2]}": partial(
                module.draft_attention, _bf16(requests, BLOCK, HEADS, HEAD_DIM),
                _bytes(requests, BLOCK, RECORDS.window.bytes), _bytes(4, 140, RECORDS.window.bytes),
                rows, rows, rows, _fp32(HEADS), by, window=128, scale=HEAD_DIM**-0.5,
                record=RECORDS.window,
            )
            for module in (draft_attention, draft_hopper)
        },
        "first rows of blocks": partial(
            triton_leading.leading_rows,
            (_bf16(requests * BLOCK, 4, HIDDEN), _fp32(requests * BLOCK, 4)), block=BLOCK, count=3,
        ),
        "experts of blocks": partial(
            experts.experts, _pair(requests * BLOCK, HIDDEN),
            torch.empty((requests * BLOCK, 3), dtype=torch.int64, device="meta"),
            _fp32(requests * BLOCK, 3), _experts(3), limit=LIMIT,
        ),
        "drafts": draft,
        "drafts drawn": partial(draft, Drawing(state, rows, rows, Purpose.TARGET, None)),
        "drafts drawn, hopper": partial(wide, Drawing(state, rows, rows, Purpose.TARGET, None)),
    }  # fmt: skip


def _sample(count: int, *, masked: bool, uses: Uses) -> Callable[[], object]:
    state = replace(SamplerTable(4, "meta").state, uses=uses)
    rows, masks = _longs(count), _words(count, VOCAB // 32) if masked else None
    return partial(sampling.sample, _fp32(count, VOCAB), state, rows, rows, _longs(4, 64), masks)


def launches(tokens: Sequence[int]) -> Mapping[str, Callable[[], object]]:
    """Calls by a name each, for every number of tokens."""
    found: dict[str, Callable[[], object]] = {}
    for count in tokens:
        found |= {f"{name} T={count}": call for name, call in _calls(count).items()}
    return found


def _calls(t: int) -> dict[str, Callable[[], object]]:
    streams, pre = _bf16(t, 4, HIDDEN), _fp32(t, 4)
    pending = Pending(_bf16(t, HIDDEN), _fp32(t, 4), _fp32(t, 4, 4))
    cross = partial(boundary.mhc_boundary, eps=EPS, hc_eps=EPS, iterations=20, quantise=True)
    ids, share = torch.empty((t, CHOICES), dtype=torch.int64, device="meta"), _fp32(t, CHOICES)
    shared = shared_expert.PackedShared(_linear(2 * INNER, HIDDEN), _linear(HIDDEN, INNER))
    output = grouped_output.PackedOutput(
        _low(GROUPS * LOW, HEADS * HEAD_DIM // GROUPS), _linear(HIDDEN, GROUPS * LOW)
    )
    by = Rotation(_fp32(t, ROPE // 2), _fp32(t, ROPE // 2))
    calls: dict[str, Callable[[], object]] = {
        f"linear {out}x{k}": partial(linear.linear_fp8, _pair(t, k), _linear(out, k))
        for out, k in LINEARS
    }
    calls |= {
        f"experts {count}": partial(
            experts.experts, _pair(t, HIDDEN), ids, share, _experts(count), limit=LIMIT
        )
        for count in EXPERTS
    }
    drawn = Uses(noise=True, truncation=True)
    calls |= {
        "sample": _sample(min(t, 64), masked=False, uses=drawn),
        "sample with masks": _sample(min(t, 64), masked=True, uses=drawn),
        "sample greedily": _sample(min(t, 64), masked=False, uses=Uses()),
    }
    calls |= _owner(t, ratio=1) | _owner(t, ratio=2) | _streams(t)
    calls |= _drafts(min(t, 64)) | _rows(min(t, 64))
    for ratio in (0, 1, 2):
        calls[f"attention ratio {ratio}"] = _attention(t, by, ratio=ratio)
        calls[f"attention of a slice, ratio {ratio}"] = _attention(t, by, ratio=ratio, whole=True)
    return calls | {
        "quantise": partial(triton_rows.sum_quantise, _bf16(t, HIDDEN)),
        "boundary": partial(cross, streams, pending, pre, _hyper()),
        "first boundary": partial(cross, streams, None, pre, _hyper()),
        "shared expert": partial(
            shared_expert.shared_expert, _pair(t, HIDDEN), shared, limit=LIMIT
        ),
        "output": partial(
            grouped_output.grouped_output, _bf16(t, HEADS, HEAD_DIM), output, groups=GROUPS
        ),
        "low rank": partial(
            low_rank.low_rank, _pair(t, HIDDEN),
            low_rank.PackedLowRank(_linear(RANK + HEAD_DIM, HIDDEN), _bf16(RANK)),
            eps=EPS, quantise=True,
        ),
        "norm": partial(
            norm_quantise.norm_quantise, _bf16(t, RANK), _bf16(RANK), eps=EPS, quantise=True
        ),
        "attention inputs": partial(
            attention_inputs.attention_inputs,
            _bf16(t, HEADS * HEAD_DIM), _bf16(t, HEAD_DIM), _bf16(HEAD_DIM), by,
            heads=HEADS, eps=EPS, record=RECORDS.window,
        ),
        "index inputs": partial(
            index_inputs.index_inputs,
            _bf16(t, INDEX_HEADS * INDEX_DIM), _bf16(t, HIDDEN), _bf16(INDEX_HEADS, HIDDEN), by,
            scale=2**-6, record=RECORDS.index_key,
        ),
        "best of long rows of 16 bits": partial(best, _bf16(t, 131_072), 512),
        "route": partial(
            route.route, _bf16(t, HIDDEN), _bf16(384, HIDDEN), _fp32(384),
            topk=CHOICES, scaling=2.5,
        ),
        "head": partial(head.head, _bf16(min(t, 256), HIDDEN), _bf16(VOCAB, HIDDEN)),
        "head, 192 tokens a program": partial(
            head_hopper.wide, _bf16(t, HIDDEN), _bf16(VOCAB, HIDDEN)
        ),
    }  # fmt: skip
