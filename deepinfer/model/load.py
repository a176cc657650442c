"""From a checkpoint directory to a network that can run.

Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer

from deepinfer.arch import Arch, load_arch
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
    """

    numerics: str = "checkpoint"
    load_format: LoadFormat = "auto"
    seed: int = 0
    engram: Placement = "device"
    ops: Mapping[str, str] = field(default_factory=dict[str, str])
    progress: Callable[[int], None] | None = None


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
    weights = WeightLoader(source, arch, ops, mode, device, options.engram).load()
    return Network(arch, mode, ops, weights, engram_map)


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
