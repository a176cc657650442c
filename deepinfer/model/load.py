"""From a checkpoint directory to a network that can run.

Knows nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
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
from deepinfer.ops.registry import Bound

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

    Args:
        directory: holds `config.json`, `tokenizer.json` and, unless dummy, the shards.
        device: where weights and computation go.
        device_arch: static fact for choosing implementations, "cpu" or "sm90".
        options: see `LoadOptions`.

    Raises:
        ConfigError: the configuration cannot be used.
        CheckpointError: the files are incomplete or damaged.
        NoImplementation: a wish in `options.ops` cannot be met.
    """
    arch = load_arch(directory)
    mode = numeric_mode(options.numerics)
    ops = Operations.bind(arch, mode, device_arch, options.ops)
    engram_map = _engram_map(directory, arch)
    source = _source(directory, arch, options)
    packing = ops if options.packed is None else _timed(ops, device, options.packed)
    weights = WeightLoader(source, arch, packing, mode, device, options.engram).load()
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
    if isinstance(weights, torch.Tensor):
        return weights.nbytes
    if is_dataclass(weights):
        return sum(resident_bytes(getattr(weights, item.name)) for item in fields(weights))
    if isinstance(weights, tuple):
        return sum(resident_bytes(item) for item in weights)
    return 0


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
