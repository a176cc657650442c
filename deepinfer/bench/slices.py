"""One rank of an expert-parallel group, on one device: the release with a part of its experts.

A GPU with 384 / r routed experts does the expert work of a rank of r GPUs, at true sizes and with
all layers; the n-gram tables are cut to a few rows, the image tower is left out and, unless asked
for, the draft stages. Weights are random. Source: performance.md 0, 3.5. Knows nothing of time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.arch import Arch, parse_arch
from deepinfer.device import Device
from deepinfer.errors import ConfigError
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_map import EngramMap, bucket_primes, multipliers, row_offsets
from deepinfer.model.engram_table import Placement
from deepinfer.model.network import Network
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import Operations
from deepinfer.model.weights import WeightLoader

RANKS = {"ep8": 8, "ep16": 16, "ep32": 32, "ep64": 64}
_RELEASE = Path(__file__).with_name("release.json")
_ENGRAM_ROWS = 1000  # least rows of each column of a cut table


def slice_arch(name: str, *, draft: bool = False, **text: Any) -> Arch:
    """The architecture of one rank.

    Args:
        name: a key of `RANKS`.
        draft: with the draft stages, which keep as many experts as they choose at least.
        text: other values for keys of `text_config`, to make it small.

    Raises:
        ConfigError: there is no such slice.
    """
    if name not in RANKS:
        raise ConfigError(f"slice {name!r}: use one of {sorted(RANKS)}")
    config = copy.deepcopy(json.loads(_RELEASE.read_text(encoding="utf-8")))
    own = config["text_config"]
    own |= {
        "n_routed_experts": own["n_routed_experts"] // RANKS[name],
        "dspark_n_routed_experts": max(
            own["dspark_n_routed_experts"] // RANKS[name], own["dspark_num_experts_per_tok"]
        ),
        "engram_vocab_size": _ENGRAM_ROWS,
    }
    if not draft:
        ratios = own["compress_ratios"][: own["num_hidden_layers"]]
        own |= {"num_nextn_predict_layers": 0, "compress_ratios": ratios}
    own |= text
    config["vision_config"]["num_hidden_layers"] = 0
    config["image_token_id"] = min(config["image_token_id"], own["vocab_size"] - 1)
    engram = parse_arch(config).engram
    if engram is not None:
        own["engram_num_embeddings"] = [int(layer.sum()) for layer in bucket_primes(engram)]
    return parse_arch(config)


def slice_network(
    arch: Arch,
    device: Device,
    wishes: Mapping[str, str],
    seed: int = 3,
    engram: Placement = "device",
) -> Network:
    """A network with random weights made on the device.

    Args:
        arch: of `slice_arch`.
        device: where it lives.
        wishes: operation name -> implementation name, "*" for all others.
        seed: of the weights.
        engram: where the n-gram tables are, see `open_table`; they have no files.
    """
    ops = Operations.bind(arch, CHECKPOINT, device.arch, wishes)
    source = DummySource(arch, seed)
    weights = WeightLoader(source, arch, ops, CHECKPOINT, device.torch, engram=engram).load()
    return Network(arch, CHECKPOINT, ops, weights, _hash_constants(arch))


def _hash_constants(arch: Arch) -> EngramMap | None:
    """Hash constants without a tokenizer: ids take the classes in turn."""
    if arch.engram is None:
        return None
    primes = bucket_primes(arch.engram)
    classes = np.arange(arch.vocab_size, dtype=np.int32) % arch.engram.compressed_vocab_size
    return EngramMap(
        classes=classes,
        primes=primes,
        offsets=row_offsets(primes),
        multipliers=multipliers(arch.engram),
        pad_class=int(classes[arch.engram.pad_token_id]),
    )
