"""Very small networks with seeded weights, whole with Engram and draft stages."""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_map import EngramMap, bucket_primes, multipliers, row_offsets
from deepinfer.model.network import Forward, Network
from deepinfer.model.numerics import numerics as numeric_mode
from deepinfer.model.operations import Operations
from deepinfer.model.state import State
from deepinfer.model.weights import WeightLoader
from deepinfer.runner.assemble import RowSlice, assemble
from tests.model.tiny import tiny_arch

CPU = torch.device("cpu")
# A window of 6 and a selection of 8 both bite within a few dozen tokens.
SMALL = {
    "sliding_window": 6,
    "index_topk": 8,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 3,
}


def with_engram(**text: object) -> Arch:
    """A tiny architecture whose Engram table sizes fit its own hash."""
    engram = {"engram_vocab_size": 40, "engram_n_heads": 2, "engram_max_ngram_size": 3}
    options = SMALL | engram | {"engram_compressed_vocab_size": 96} | text
    arch = tiny_arch(**options)
    assert arch.engram is not None
    sums = [int(layer.sum()) for layer in bucket_primes(arch.engram)]
    return tiny_arch(**options, engram_num_embeddings=sums)


def hash_map(arch: Arch) -> EngramMap | None:
    """Hash constants with one class a token: no tokenizer is needed."""
    if arch.engram is None:
        return None
    primes = bucket_primes(arch.engram)
    return EngramMap(
        classes=np.arange(arch.vocab_size, dtype=np.int32),
        primes=primes,
        offsets=row_offsets(primes),
        multipliers=multipliers(arch.engram),
        pad_class=arch.engram.pad_token_id,
    )


@functools.cache
def network(
    numerics: str = "checkpoint",
    *,
    engram: bool = True,
    draft: bool = True,
    device: torch.device = CPU,
) -> Network:
    """A seeded network of reference operations; the same object for the same arguments."""
    text: dict[str, object] = {}
    if not draft:
        text |= {"num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 1, 1]}
    arch = with_engram(**text) if engram else tiny_arch(**SMALL, **text, engram_layer_ids=[])
    mode = numeric_mode(numerics)
    ops = Operations.bind(arch, mode, "cpu", {"*": "reference"})
    weights = WeightLoader(DummySource(arch, 7), arch, ops, mode, device).load()
    return Network(arch, mode, ops, weights, hash_map(arch))


def new_state(net: Network, slots: int = 4, pages: int = 12) -> State:
    """Cleared pools, so that tests may compare all bytes."""
    state = State.allocate(net.arch, net.records, pages=pages, slots=slots, device=net.device)
    state.pages.zero_()
    state.slots.zero_()
    return state


def run(net: Network, state: State, slices: Sequence[RowSlice], *, compact: bool = True) -> Forward:
    ngram = 1 if net.arch.engram is None else net.arch.engram.max_ngram_size
    step = assemble(slices, ngram, net.device, compact=compact)
    return net.forward(step.history, step.batch, state, step.tail)


def tokens(net: Network, count: int, seed: int = 0) -> list[int]:
    """Random ids without the image id."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(net.arch.image_token_id + 1, 88, (count,), generator=generator)
    return list(ids.tolist())


def last_logits(net: Network, forward: Forward) -> Tensor:
    return net.logits(forward.hidden[-1:])[0]
