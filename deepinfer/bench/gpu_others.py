"""Suite of the smaller kernels of a step: head, output, shared expert, inputs, compressor, streams.

Knows nothing of marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Records
from deepinfer.arch import Record as Format
from deepinfer.bench import cases
from deepinfer.bench.measure import Ceilings, Record, graph_us
from deepinfer.ops.attention_inputs import triton as attention_inputs
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.compress import CompressorWeights
from deepinfer.ops.compress import triton as compress
from deepinfer.ops.engram_gate import triton as engram_gate
from deepinfer.ops.experts.reference import plain_weight
from deepinfer.ops.formats import dequantise_fp8
from deepinfer.ops.grouped_output import OutputWeights, triton_low
from deepinfer.ops.grouped_output import triton as grouped_output
from deepinfer.ops.head import triton as head
from deepinfer.ops.mhc_collapse import triton as mhc_collapse
from deepinfer.ops.mhc_update import triton as mhc_update
from deepinfer.ops.norm_quantise import triton as norm_quantise
from deepinfer.ops.rotation import frequencies, rotation
from deepinfer.ops.route import triton as route
from deepinfer.ops.shared_expert import SharedWeights
from deepinfer.ops.shared_expert import triton as shared_expert

HIDDEN, INNER, VOCAB, HEADS, WIDTH, GROUPS, LOW = 5120, 2304, 129280, 64, 512, 8, 1024
KEY, ROPE = 128, 64
TOKENS = (8, 64, 256)
Calls = list[Callable[[], object]]
Case = tuple[str, Calls, Calls, str, float, int]
"""Name, our calls, the peer's calls and name, bytes that must be read, least calls in a graph."""


def _bf16(device: torch.device, *shape: int, size: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=device) * size).to(torch.bfloat16)


def bench_others(
    device: torch.device, top: Ceilings, _sweep: bool
) -> Iterator[tuple[Record, bool]]:
    """Each kernel at 8, 64 and 256 tokens, weights rotating."""
    for part in (_head, _shared, _output, _small, _compress, _streams):
        for name, calls, peer_calls, peer, nbytes, least in part(device):
            ours, spread = graph_us(calls, least)
            other = graph_us(peer_calls, least)[0] if peer_calls else None
            floor = nbytes / top.read * 1e6
            yield Record(name, "", ours, floor, "bytes read", spread, other, peer), False


def _head(device: torch.device) -> Iterator[Case]:
    weight = head.pack(_bf16(device, VOCAB, HIDDEN, size=HIDDEN**-0.5))
    for tokens in TOKENS:
        hidden = _bf16(device, tokens, HIDDEN)
        peers: Calls = [partial(torch.matmul, hidden, weight.T)]
        calls: Calls = [partial(head.head, hidden, weight)]
        yield f"head T={tokens}", calls, peers, "torch bf16", weight.nbytes, 4


def _shared(device: torch.device) -> Iterator[Case]:
    stored = [
        SharedWeights(
            cases.fp8_weight(2 * INNER, HIDDEN, device, (112, 116)),
            cases.fp8_weight(HIDDEN, INNER, device),
        )
        for _ in range(8)
    ]
    packed = [shared_expert.pack(w) for w in stored]
    dense = [tuple(plain_weight(m).to(torch.bfloat16).mT for m in w) for w in stored[:4]]
    for tokens in TOKENS:
        x = cases.activations(tokens, HIDDEN, device)
        plain = dequantise_fp8(x).to(torch.bfloat16)
        calls: Calls = [partial(shared_expert.shared_expert, x, w, limit=10.0) for w in packed]
        peers: Calls = [partial(_gated, plain, *w) for w in dense]
        yield f"shared expert T={tokens}", calls, peers, "torch bf16", 3 * HIDDEN * INNER, 8


def _gated(x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    gate, up = (x @ w13).chunk(2, -1)
    return (torch.nn.functional.silu(gate.clamp(max=10)) * up.clamp(-10, 10)) @ w2


def _output(device: torch.device) -> Iterator[Case]:
    columns = HEADS * WIDTH // GROUPS
    stored = [
        OutputWeights(
            cases.fp8_weight(GROUPS * LOW, columns, device),
            cases.fp8_weight(HIDDEN, GROUPS * LOW, device),
        )
        for _ in range(5)
    ]
    packed = [grouped_output.pack(w) for w in stored]
    dense = [tuple(plain_weight(m).to(torch.bfloat16) for m in w) for w in stored[:3]]
    for tokens in TOKENS:
        o = _bf16(device, tokens, HEADS, WIDTH)
        flat = o.flatten(1)
        low: Calls = [partial(triton_low.low_rank, flat, w.wo_a, GROUPS) for w in packed]
        yield f"wo_a T={tokens}", low, [], "", GROUPS * LOW * columns, 8
        calls: Calls = [partial(grouped_output.grouped_output, o, w, groups=GROUPS) for w in packed]
        peers: Calls = [partial(_projected, flat, *w) for w in dense]
        size = GROUPS * LOW * (columns + HIDDEN)
        yield f"grouped_output T={tokens}", calls, peers, "torch bf16", size, 8


def _projected(o: Tensor, wo_a: Tensor, wo_b: Tensor) -> Tensor:
    grouped = o.unflatten(1, (GROUPS, -1)).transpose(0, 1)
    low = torch.bmm(grouped, wo_a.unflatten(0, (GROUPS, -1)).mT)
    return low.transpose(0, 1).flatten(1) @ wo_b.mT


def _small(device: torch.device) -> Iterator[Case]:
    freqs = frequencies(64, 10000.0).to(device)
    gates = [_bf16(device, 384, HIDDEN, size=HIDDEN**-0.5) for _ in range(30)]
    bias, gain, norm = torch.zeros(384, device=device), _bf16(device, WIDTH), _bf16(device, 1280)
    record = Format("fp8_ue8m0_32", WIDTH)
    for tokens in TOKENS:
        hidden, low = _bf16(device, tokens, HIDDEN), _bf16(device, tokens, 1280)
        q, kv = _bf16(device, tokens, HEADS * WIDTH), _bf16(device, tokens, WIDTH)
        by = rotation(torch.arange(tokens, device=device), freqs)
        calls: Calls = [partial(route.route, hidden, g, bias, topk=6, scaling=2.5) for g in gates]
        yield f"route T={tokens}", calls, [], "", gates[0].nbytes, 8
        make = partial(attention_inputs.attention_inputs, heads=HEADS, eps=1e-6, record=record)
        calls = [partial(make, q, kv, gain, by)]
        yield f"attention_inputs T={tokens}", calls, [], "", 2 * q.nbytes, 8
        calls = [partial(norm_quantise.norm_quantise, low, norm, eps=1e-6, quantise=True)]
        yield f"norm_quantise T={tokens}", calls, [], "", 2 * low.nbytes, 8


def _compress(device: torch.device) -> Iterator[Case]:
    """One decoding token each of some requests, which completes an entry of either ratio."""
    records = Records(
        Format("fp8_ue8m0_32", WIDTH), Format("fp4_e4m3_16", WIDTH), Format("fp4_ue8m0_32", KEY)
    )
    freqs = frequencies(ROPE, 160000.0).to(device)
    for ratio in (1, 2):
        gate = _bf16(device, WIDTH, HIDDEN, size=HIDDEN**-0.5) if ratio == 2 else None
        stored = [
            CompressorWeights(
                wkv=_bf16(device, WIDTH, HIDDEN, size=HIDDEN**-0.5),
                wgate=gate,
                norm=_bf16(device, WIDTH),
                wk=_bf16(device, KEY, WIDTH, size=WIDTH**-0.5),
                k_norm=_bf16(device, KEY),
            )
            for _ in range(20)
        ]
        packed = [compress.pack(w) for w in stored]
        for tokens in TOKENS:
            batch, pages, pairs = _requests(device, tokens, ratio, records)
            hidden = _bf16(device, tokens, HIDDEN)
            run = partial(compress.compress, eps=1e-6, records=records)
            calls: Calls = [partial(run, hidden, w, batch, pairs, pages, freqs) for w in packed]
            nbytes = packed[0].wkv.nbytes + packed[0].wk.nbytes
            yield f"compress ratio {ratio} T={tokens}", calls, [], "", nbytes, 8


def _requests(
    device: torch.device, tokens: int, ratio: int, records: Records
) -> tuple[Batch, PageViews, Tensor | None]:
    """A decoding step of as many requests, each with a page of its own, at position 101."""
    each = torch.arange(tokens, device=device)
    start = torch.full_like(each, 101)
    rows = torch.arange(tokens + 1, device=device)
    batch = Batch(
        positions=start,
        rows=each + 1,
        starts=start,
        ends=start + 1,
        lower=torch.zeros_like(each),
        cached=torch.zeros_like(each),
        slots=rows,
        page_table=rows.unsqueeze(1),
        slices=tuple((i, i + 1) for i in range(tokens)),
        max_len=102,
    )
    key = records.index_key
    shape = (tokens + 1, PAGE_TOKENS // ratio)
    widths = (records.latent.bytes, key.code_bytes, key.scale_bytes)
    pages = PageViews(*(cases.random_bytes((*shape, width), device) for width in widths))
    pairs = torch.randn((tokens + 1, 14, 2, WIDTH), device=device) if ratio == 2 else None
    return batch, pages, pairs


def _streams(device: torch.device) -> Iterator[Case]:
    gains = _bf16(device, 4, HIDDEN)
    for tokens in TOKENS:
        inputs = [cases.boundary_inputs(tokens, HIDDEN, device) for _ in range(20)]
        moved = 2 * inputs[0][0].nbytes
        calls: Calls = [partial(mhc_update.mhc_update, x, y) for x, y, _ in inputs]
        yield f"mhc_update T={tokens}", calls, [], "", moved, 8
        calls = [partial(mhc_collapse.mhc_collapse, x, p, gains[0], 1e-6) for x, _, p in inputs]
        yield f"mhc_collapse T={tokens}", calls, [], "", 3 * moved // 4, 8
        kv = [_bf16(device, tokens, 5 * HIDDEN) for _ in inputs]
        live = torch.rand(tokens, device=device) > 0.1
        gate = partial(engram_gate.engram_gate, eps=1e-6)
        calls = [
            partial(gate, x, r, gains, gains, live) for (x, _, _), r in zip(inputs, kv, strict=True)
        ]
        yield f"engram_gate T={tokens}", calls, [], "", moved + kv[0].nbytes, 8
