"""Suite of the draft pass as an engine runs it: blocks, three stages over them, head, Markov loop.

The stages and the head have the sizes of the release with the experts of one rank; the layers below
them are few and not timed. Source: performance.md 4, row 15. Knows nothing of marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.bench.measure import Ceilings, Record, graph_us
from deepinfer.bench.slices import slice_arch, slice_network
from deepinfer.bench.step import fill, recorded
from deepinfer.device import find_device
from deepinfer.model.drafter import Drafter
from deepinfer.model.load import resident_bytes
from deepinfer.model.network import Network
from deepinfer.model.state import State
from deepinfer.ops.draft_start import draft_start
from deepinfer.ops.noise import Purpose
from deepinfer.ops.sample import Drawing, SamplerTable
from deepinfer.ops.sample.cases import admitted
from deepinfer.step import RowSampling

SLICES, REQUESTS, DRAFTS, LENGTH = ("ep64", "ep8"), (8, 32, 64), 3, 32_768
# The least network that hands features to the stages.
FEW_LAYERS = {
    "num_hidden_layers": 3,
    "compress_ratios": [2, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [0, 1],
    "index_source_layer_ids": [0, 1, 2],
    "candidate_source_layer_id": 1,
    "engram_layer_ids": [1],
    "engram_num_embeddings": [1],
    "dspark_target_layer_ids": [0, 1, 2],
}
Calls = list[tuple[str, Callable[[], object]]]


def bench_draft(device: torch.device, top: Ceilings, sweep: bool) -> Iterator[tuple[Record, bool]]:
    """Passes that give 3 drafts of blocks of 5, every other row drawn; parts as trials."""
    for name in SLICES:
        network = slice_network(slice_arch(name, draft=True, **FEW_LAYERS), find_device("cuda"), {})
        floor = _bytes_read(network) / top.read * 1e6
        for requests in REQUESTS:
            run = partial(_draft, given(network, requests, device), Drafter(network))
            ours, spread = graph_us([run], 1)
            shape = f"{DRAFTS} drafts, {LENGTH} tokens"
            what = f"draft pass {name} B={requests}"
            yield Record(what, shape, ours, floor, "weights read", spread), False
            for part in _parts(network, requests, device) if sweep else ():
                yield part, True


class Given(NamedTuple):
    """What is known of all rows, those that draft, pools, and how they draw."""

    table: SimpleNamespace
    rows: Tensor
    state: State
    drawing: Drawing


def given(network: Network, requests: int, device: torch.device) -> Given:
    """Random rings, requests that know `LENGTH` tokens."""
    state = State.allocate(
        network.arch, network.records, pages=1, slots=requests + 1, device=device
    )
    fill(state)
    rows = torch.arange(1, requests + 1, device=device)
    table = SamplerTable(requests + 1, device)
    for row in range(1, requests + 1):
        table.admit(admitted(row, 1, RowSampling(temperature=float(row % 2))))
    some = torch.full((requests + 1,), LENGTH, device=device)
    known = SimpleNamespace(
        tokens=torch.randint(10, network.arch.vocab_size, (requests + 1, LENGTH), device=device),
        length=some,
        slot=torch.arange(requests + 1, device=device),
        decoder_start=some * 0,
        lower=some * 0,
    )
    drawing = Drawing(table.state, rows, rows * 0 + LENGTH, Purpose.TARGET, None)
    return Given(known, rows, state, drawing)


def _draft(arguments: Given, drafter: Drafter) -> Tensor:
    table, rows, state, drawing = arguments
    draft = drafter.draft_arch
    begin = draft_start.bind(arch=find_device(str(drafter.network.device)).arch)
    start = begin(table, rows, block=draft.block_size, noise=draft.noise_token_id)
    return drafter.draft_from(start, state, drawing, count=DRAFTS, keep=False).tokens


def _bytes_read(network: Network) -> int:
    """Weights of the stages with all experts of the rank, Markov head and head; no embeddings."""
    weights = network.weights.draft
    assert weights is not None, "the slice has draft stages"
    own = weights.stages, weights.norm, weights.markov.head, weights.markov.confidence
    return resident_bytes((*own, network.weights.head))


def _parts(network: Network, requests: int, device: torch.device) -> Iterator[Record]:
    """Each operation's calls in one pass, one after another in a graph of their own."""
    calls: Calls = []
    drafter = Drafter(recorded(network, lambda name, call: calls.append((name, call))))
    _draft(given(network, requests, device), drafter)
    for name in dict.fromkeys(name for name, _ in calls):
        every = [call for other, call in calls if other == name]
        each, spread = graph_us(every, len(every))
        what = f"  of it {name} x {len(every)}"
        yield Record(what, "", each * len(every), 0.0, "none", spread)
