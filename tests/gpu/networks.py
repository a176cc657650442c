"""Networks with every part of the release at other sizes, and dummy weights of a seed.

Knows no expected values.
"""

import copy
import json
from pathlib import Path
from typing import Any

import torch

from deepinfer.arch import Arch, parse_arch
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_map import bucket_primes
from deepinfer.model.network import Network
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import Operations
from deepinfer.model.weights import WeightLoader
from tests.model.networks import hash_map

RELEASE = Path(__file__).parents[1] / "golden_data" / "release" / "config.json"


def sized(**text: Any) -> Arch:
    """The release with other numbers; the n-gram tables are cut to what their hash needs."""
    config = copy.deepcopy(json.loads(RELEASE.read_text()))
    config["text_config"] |= {"engram_vocab_size": 1000} | text
    config["vision_config"]["num_hidden_layers"] = 0
    config["image_token_id"] = config["text_config"]["vocab_size"] - 16
    rows = config["text_config"]["engram_num_embeddings"]
    arch = parse_arch(config)
    assert arch.engram is not None
    rows[:] = [int(layer.sum()) for layer in bucket_primes(arch.engram)]
    return parse_arch(config)


def build(arch: Arch, device: torch.device, device_arch: str, ops: dict[str, str]) -> Network:
    """A network in the released formats with the operations asked for."""
    bound = Operations.bind(arch, CHECKPOINT, device_arch, ops)
    weights = WeightLoader(DummySource(arch, 3), arch, bound, CHECKPOINT, device).load()
    return Network(arch, CHECKPOINT, bound, weights, hash_map(arch))


def small() -> Arch:
    """Six layers of every role, small enough for a few seconds, large enough for the kernels."""
    return sized(
        vocab_size=2048,
        hidden_size=512,
        moe_intermediate_size=512,
        q_lora_rank=256,
        num_attention_heads=8,
        head_dim=128,
        o_lora_rank=128,
        o_groups=4,
        n_routed_experts=12,
        index_head_dim=64,
        index_n_heads=8,
        engram_pad_token_id=2,
        engram_compressed_vocab_size=2048,
        dspark_noise_token_id=5,
        dspark_n_routed_experts=8,
        num_hidden_layers=6,
        compress_ratios=[0, 0, 2, 2, 1, 1, 0, 0, 0],
        kv_source_layer_ids=[2, 4],
        index_source_layer_ids=[2, 4, 5],
        candidate_source_layer_id=4,
        engram_layer_ids=[1],
        engram_num_embeddings=[1],
        dspark_target_layer_ids=[3, 4, 5],
        max_position_embeddings=4096,
    )
