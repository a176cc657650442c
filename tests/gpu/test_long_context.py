"""A context of 200,000 tokens at the sizes of the release: kernels against references on the way.

Six layers have every role. Chunks of prompts and decoding steps at chosen positions run attention
and the indexer's choice a second time by the reference, on the same inputs and state.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Arch
from deepinfer.bench.slices import slice_arch
from deepinfer.model.dummy import DummySource
from deepinfer.model.network import Network
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import OPS, Operations
from deepinfer.model.state import State
from deepinfer.model.weights import WeightLoader
from deepinfer.ops.registry import Bound
from deepinfer.runner.assemble import RowSlice
from tests.model.networks import hash_map, run

pytestmark = pytest.mark.gpu
LENGTH, KEEP, SHORT = 200_000, 140, 12
# Where short chunks are looked at: both sides of a page border, and far behind the candidates.
LOOKED_AT = (126, 20_000, 131_070, LENGTH - SHORT)


class Checked:
    """An operation that, while `on`, also runs its reference and notes how far they are apart."""

    def __init__(self, bound: Bound, distance: Callable[[Any, Any], float]):
        self.bound, self.distance = bound, distance
        self.implementation, self.op, self.reason = bound.implementation, bound.op, bound.reason
        self.names = list(inspect.signature(OPS[bound.op].reference).parameters)
        self.on = False
        self.found: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.bound(*args, **kwargs)
        if self.on:
            self.found.append(self.distance(result, OPS[self.op].reference(*args, **kwargs)))
        return result

    def pack(self, weights: Any) -> Any:
        return self.bound.pack(weights)


def root_mean_square(found: Tensor, wanted: Tensor) -> float:
    """Largest relative error of a row."""
    wide = wanted.double().flatten(1)
    return float(((found.double().flatten(1) - wide).norm(dim=1) / wide.norm(dim=1)).max())


def choices(found: Any, wanted: Any) -> float:
    """Largest part of a token's entries that the reference does not choose."""
    entries = int(max(found.ids.max(), wanted.ids.max())) + 1
    parts = []
    for one, other in zip(found.ids, wanted.ids, strict=True):
        assert bool((one[1:] > one[:-1])[one[1:] >= 0].all()), "ascending"
        assert one.ge(0).sum() == other.ge(0).sum()
        chosen = torch.zeros(entries, dtype=torch.bool, device=one.device)
        chosen[other[other >= 0]] = True
        parts.append(1 - chosen[one[one >= 0]].double().mean())
    return float(torch.stack(parts).max())


def six_layers() -> Arch:
    """Window; owner of ratio 2, reuse; owner of ratio 1 and candidate source, reuse, reindex."""
    return slice_arch(
        "ep64",
        vocab_size=4096,
        num_hidden_layers=6,
        compress_ratios=[0, 2, 2, 1, 1, 1],
        kv_source_layer_ids=[1, 3],
        index_source_layer_ids=[1, 3, 5],
        candidate_source_layer_id=3,
        engram_layer_ids=[2],
        engram_num_embeddings=[1],
        engram_pad_token_id=2,
        engram_compressed_vocab_size=4096,
        dspark_noise_token_id=5,
    )


@pytest.fixture(scope="module")
def long(gpu):
    arch = six_layers()
    ops = Operations.bind(arch, CHECKPOINT, gpu.arch, {"index_select": "triton"})
    watched: dict[str, Any] = {
        "sparse_attention": Checked(ops.sparse_attention, root_mean_square),
        "index_select": Checked(ops.index_select, choices),
    }
    ops = dataclasses.replace(ops, **watched)
    weights = WeightLoader(DummySource(arch, 3), arch, ops, CHECKPOINT, gpu.device).load()
    net = Network(arch, CHECKPOINT, ops, weights, hash_map(arch))
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(10, 4000, (LENGTH + 8,), generator=generator).tolist()
    return net, watched, ids


def pages(order: int) -> tuple[int, ...]:
    """Pages of the request, in a shuffled order."""
    count = -(-(LENGTH + 8) // PAGE_TOKENS)
    generator = torch.Generator().manual_seed(order)
    return tuple((1 + torch.randperm(count, generator=generator)).tolist())


def prefill(long, state: State, table: tuple[int, ...], chunk: int, *, look: bool) -> Tensor:
    """Hidden rows of the last chunk; short chunks where the references look."""
    net, watched, ids = long
    stops = {*LOOKED_AT, *(p + SHORT for p in LOOKED_AT), LENGTH} if look else {LENGTH}
    at, hidden = 0, torch.empty(0)
    while at < LENGTH:
        end = min([at + chunk, *(stop for stop in stops if stop > at)])
        for op in watched.values():
            op.on = look and at in LOOKED_AT
        step = RowSlice(ids, at, end - at, 1, table, decoder_start=LENGTH - KEEP)
        hidden = run(net, state, [step]).hidden
        at = end
    return hidden


def decode(long, state: State, table: tuple[int, ...], *, look: bool) -> Tensor:
    net, watched, ids = long
    for op in watched.values():
        op.on = look
    found = [
        run(net, state, [RowSlice(ids, at, 1, 1, table, decoder_start=LENGTH - KEEP)]).hidden
        for at in range(LENGTH, LENGTH + 8)
    ]
    return torch.cat(found)


def poisoned_state(net: Network, count: int) -> State:
    state = State.allocate(net.arch, net.records, pages=count + 1, slots=2, device=net.device)
    state.pages.fill_(255)
    state.slots.fill_(255)
    return state


def test_a_context_of_200000_tokens(long):
    net, watched, _ = long
    table = pages(1)
    state = poisoned_state(net, len(table))
    prefill(long, state, table, 8192, look=True)
    hidden = decode(long, state, table, look=True)
    assert bool(net.logits(hidden).isfinite().all())
    attention, selection = (watched[n].found for n in ("sparse_attention", "index_select"))
    # Six layers and three choices a decoding step; the decoder's run for the prompt's end only.
    assert len(attention) >= 8 * 6 + 3 * 3
    assert len(selection) >= 8 * 3 + 3
    print(f"attention off by {max(attention):.2e}, other choices {max(selection):.2e}")  # noqa: T201
    assert max(attention) < 1e-2
    assert max(selection) < 0.02  # scores that nearly tie

    other = pages(2)
    again = poisoned_state(net, len(other))
    prefill(long, again, other, 5000, look=False)
    assert torch.equal(decode(long, again, other, look=False), hidden)
    for view, same in zip(state.owners.values(), again.owners.values(), strict=True):
        for one, two in zip(view, same, strict=True):
            whole = LENGTH // PAGE_TOKENS
            assert torch.equal(one[list(table[:whole])], two[list(other[:whole])])
