"""Suites of attention and sampling, at decoding and prefill sizes.

Decoding: requests of one token each behind 8,191 others; from 256 tokens on: one slice of a request
that selects from 65,536 entries. Knows nothing of marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer.bench.measure import Ceilings, Record, graph_us
from deepinfer.bench.slices import slice_arch
from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.sample import SamplerTable, sample
from deepinfer.ops.sample import triton as sampling
from deepinfer.ops.sample.cases import admitted
from deepinfer.ops.sparse_attention import cases as attention_cases
from deepinfer.ops.sparse_attention import triton as attention
from deepinfer.ops.sparse_attention import triton_split as split
from deepinfer.step import RowSampling

CONTEXT, POOL, HEADS, WIDTH, SLOTS = 8192, 65536, 64, 512, 640
Records = Iterator[tuple[Record, bool]]

# Other ways worth a try, by tokens: tiles of the two launches, programs of the one.
TRIALS: dict[int, tuple[tuple[int, ...], ...]] = {
    8: ((128, 3, 32, 4, 4), (128, 4, 64, 4, 4), (132,)),
    64: ((128, 3, 128, 4, 3), (128, 2, 64, 4, 2), (132,)),
    256: ((128, 2, 128, 4, 2),),
    1024: (),
    4096: ((128, 2, 128, 4, 2),),
}
SAMPLINGS = {
    "greedy": RowSampling(temperature=0.0),
    "plain": RowSampling(),
    "top-p": RowSampling(temperature=0.6, top_p=0.95),
    "top-k and top-p": RowSampling(top_k=20, top_p=0.9),
    "penalties": RowSampling(presence_penalty=0.5, frequency_penalty=0.2),
    "log-probabilities": RowSampling(temperature=0.0, logprobs=5),
}


def _batch(make: Maker, tokens: int) -> Batch:
    if tokens <= 64:
        return make.batch([(CONTEXT - 1, 1)] * tokens)
    return make.batch([(POOL - tokens, tokens)])


def _floor(nbytes: float, flop: float, top: Ceilings) -> tuple[float, str]:
    """Microseconds at the ceilings, and which of them bounds."""
    read, product = nbytes / top.read * 1e6, flop / top.matmul * 1e6
    return (read, "bytes read") if read > product else (product, "bf16 matmul")


def bench_attention(device: torch.device, top: Ceilings, sweep: bool) -> Records:
    """Sparse attention; `sweep` also times other tiles."""
    make = Maker(slice_arch("ep64"), device=device)
    pool = torch.randn(POOL, WIDTH, device=device).to(torch.bfloat16)
    keys = 128 * make.records.window.bytes + 512 * make.records.latent.bytes
    for tokens, trials in TRIALS.items():
        batch = _batch(make, tokens)
        given = attention_cases.case(make, batch, ratio=1)
        # Neighbours in a slice share their records; requests share none.
        stored = keys * tokens if tokens <= 64 else POOL * make.records.latent.bytes
        nbytes = stored + tokens * 2 * HEADS * WIDTH * 2
        floor = _floor(nbytes, 4.0 * tokens * HEADS * SLOTS * WIDTH, top)
        chosen = torch.randint(0, len(pool), (tokens, SLOTS), device=device)
        peer = _timed(partial(_attended, given["q"], pool, chosen)) if tokens <= 1024 else None
        ours, spread = graph_us([partial(attention.sparse_attention, **given)])
        name = f"sparse_attention T={tokens}"
        yield Record(name, "", ours, *floor, spread, peer, "torch gather, bf16"), False
        for trial in trials if sweep else ():
            ours, spread = graph_us([partial(_tried, trial, given)])
            yield Record(name, str(trial), ours, *floor, spread, note=str(trial)), True


def _tried(trial: tuple[int, ...], given: Case) -> Tensor:
    if len(trial) == 1:
        return attention.in_one(**given, programs=trial[0])
    return split.tiled(**given, tiles=split.Tiles(*trial))


def _timed(call: Callable[[], object]) -> float:
    return graph_us([call])[0]


def _attended(q: Tensor, pool: Tensor, chosen: Tensor) -> Tensor:
    keys = pool[chosen]
    return torch.softmax((q @ keys.mT) * WIDTH**-0.5, -1) @ keys


def bench_sampling(device: torch.device, top: Ceilings, _sweep: bool) -> Records:
    """Sampling 8 and 64 rows of one kind; the peer is the reference, which sorts."""
    vocab = slice_arch("ep64").vocab_size
    for rows in (8, 64):
        logits = torch.randn(rows, vocab, device=device) * 3
        at = torch.arange(1, rows + 1, device=device)
        tokens = torch.randint(0, vocab, (rows + 1, 1024), device=device)
        floor = _floor(logits.nbytes, 0.0, top)
        for kind, wish in SAMPLINGS.items():
            table = SamplerTable(rows + 1, device)
            for row in range(1, rows + 1):
                table.admit(admitted(row, 3, wish))
            given = (logits, table.state, at, at + 500, tokens)
            ours, spread = graph_us([partial(sampling.sample, *given)])
            peer = _timed(partial(sample.reference, *given))
            name = f"sample {kind} T={rows}"
            yield Record(name, "", ours, *floor, spread, peer, "reference"), False
