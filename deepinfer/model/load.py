"""From a checkpoint directory to a network that can run.

Knows nothing of requests.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer

from deepinfer.arch import Arch, load_arch
from deepinfer.device import find_device
from deepinfer.errors import ConfigError
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_map import EngramMap
from deepinfer.model.engram_table import Placement
from deepinfer.model.network import Network
from deepinfer.model.numerics import numerics as numeric_mode
from deepinfer.model.operations import Operations
from deepinfer.model.source import TensorSource
from deepinfer.model.weights import WeightLoader
from deepinfer.ops.experts.packing import Rounded
from deepinfer.ops.registry import Bound

_LOG = logging.getLogger(__name__)

LoadFormat = Literal["auto", "dummy"]


@dataclass(frozen=True)
class LoadOptions:
    """How to load.

    Attributes:
        numerics: "checkpoint" or "noquant".
        load_format: "auto" reads the checkpoint, "dummy" makes seeded random weights.
        seed: of dummy weights.
        engram: where the Engram tables live: "device", "host" or "disk".
        ops: operation name -> implementation name, "*" for all others.
        progress: called with the number of bytes just read.
        packed: called with the seconds of each packing, device time included.
    """

    numerics: str = "checkpoint"
    load_format: LoadFormat = "auto"
    seed: int = 0
    engram: Placement = "device"
    ops: Mapping[str, str] = field(default_factory=dict[str, str])
    progress: Callable[[int], None] | None = None
    packed: Callable[[float], None] | None = None


def load_network(
    directory: Path, device: torch.device, device_arch: str, options: LoadOptions
) -> Network:
    """Load the text network and, if the checkpoint has them, the draft stages.

    Weights that a packing had to round are counted in a warning.

    Args:
        directory: holds `config.json`, `tokenizer.json` and, unless dummy, the shards.
        device: where weights and computation go.
        device_arch: static fact for choosing implementations, "cpu" or "sm90".
        options: see `LoadOptions`.

    Raises:
        ConfigError: the configuration cannot be used.
        CheckpointError: the files are incomplete or damaged.
        NoImplementation: a wish in `options.ops` cannot be met, or an implementation cannot hold
            the weights.
    """
    arch = load_arch(directory)
    mode = numeric_mode(options.numerics)
    ops = Operations.bind(arch, mode, device_arch, options.ops)
    engram_map = _engram_map(directory, arch)
    source = _source(directory, arch, options)
    packing = ops if options.packed is None else _timed(ops, device, options.packed)
    weights = WeightLoader(source, arch, packing, mode, device, options.engram).load()
    if (rounded := rounded_groups(weights)).groups:
        _LOG.warning(
            "experts: %s of %s groups of FP4 weights rounded: their scale is more than 2^11 below "
            "the largest of their row; at most by 2^%.1f of that row's largest weight. "
            "For exact weights name another implementation of experts (`deepinfer ops`).",
            f"{rounded.groups:,}",
            f"{rounded.of:,}",
            math.log2(rounded.error),
        )
    return Network(arch, mode, ops, weights, engram_map)


def _timed(ops: Operations, device: torch.device, packed: Callable[[float], None]) -> Operations:
    """The same operations, which say how long each packing takes."""
    place = find_device(str(device))

    def timed(bound: Bound) -> Bound:
        def pack(weights: Any) -> Any:
            place.synchronize()
            started = time.perf_counter()
            result = bound.pack(weights)
            place.synchronize()
            packed(time.perf_counter() - started)
            return result

        return replace(bound, implementation=replace(bound.implementation, pack=pack))

    return Operations(**{item.name: timed(getattr(ops, item.name)) for item in fields(ops)})


def resident_bytes(weights: object) -> int:
    """Bytes of all tensors in a tree of dataclasses and tuples, such as `Network.weights`.

    Engram tables count nothing: they may live elsewhere.
    """
    return sum(leaf.nbytes for leaf in _leaves(weights) if isinstance(leaf, torch.Tensor))


def rounded_groups(weights: object) -> Rounded:
    """What packing changed in a tree as above."""
    found = (leaf for leaf in _leaves(weights) if isinstance(leaf, Rounded))
    return reduce(Rounded.and_also, found, Rounded(0, 0, 0.0))


def _leaves(weights: object) -> Iterator[object]:
    """What is neither dataclass nor tuple; a `Rounded` is whole."""
    if is_dataclass(weights):
        for item in fields(weights):
            yield from _leaves(getattr(weights, item.name))
    elif isinstance(weights, tuple) and not isinstance(weights, Rounded):
        for item in weights:
            yield from _leaves(item)
    else:
        yield weights


def _source(directory: Path, arch: Arch, options: LoadOptions) -> TensorSource:
    if options.load_format == "dummy":
        return DummySource(arch, options.seed)
    return Checkpoint(directory, arch, progress=options.progress)


def _engram_map(directory: Path, arch: Arch) -> EngramMap | None:
    if arch.engram is None:
        return None
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; the n-gram memory is hashed over its tokens")
    return EngramMap.build(arch.engram, Tokenizer.from_file(str(path)), arch.vocab_size)
