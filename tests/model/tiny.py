"""A very small architecture with every kind of tensor, image tower included, for loading tests.

Also what those tests need to damage a checkpoint: edit an index, rebuild a shard, poke a byte.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.arch import Arch, parse_arch
from deepinfer.errors import CheckpointError
from deepinfer.model.checkpoint import INDEX_NAME, Checkpoint
from deepinfer.model.shard import read_header
from deepinfer.nano.shape import nano_config

_TEXT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 3,
    "hc_mult": 2,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "compress_ratios": [0, 2, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 8,
    "candidate_source_layer_id": 2,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 4,
    "engram_layer_ids": [1],
    "engram_num_embeddings": [211],
    "engram_head_dim": 64,
    "num_nextn_predict_layers": 2,
    "dspark_target_layer_ids": [2, 3],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 2,
    "dspark_num_experts_per_tok": 1,
}


def tiny_config(*, vision_layers: int = 1, **text: Any) -> dict[str, Any]:
    """The nested `config.json`; `text` overrides keys of `text_config`."""
    config: dict[str, Any] = copy.deepcopy(nano_config(5, 6, 90))
    config["text_config"] |= _TEXT | text
    config["vision_config"]["num_hidden_layers"] = vision_layers
    return config


def tiny_arch(**text: Any) -> Arch:
    return parse_arch(tiny_config(**text))


CONFIG, ARCH = tiny_config(), tiny_arch()
FIRST, SECOND, THIRD = (f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3))

# Tensors of a shard by name: dtype, shape, bytes.
Items = dict[str, list[Any]]


def problems(directory: Path, arch: Arch = ARCH, **options: Any) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(directory, arch, **options)
    return caught.value.problems


def one_problem(directory: Path, arch: Arch = ARCH, **options: Any) -> str:
    found = problems(directory, arch, **options)
    assert len(found) == 1, found
    return found[0]


def edit_index(directory: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = directory / INDEX_NAME
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def rebuild(path: Path, change: Callable[[Items], object]) -> None:
    """Write a shard anew; `change` edits a dict of name -> [dtype, shape, bytes]."""
    raw = path.read_bytes()
    items: Items = {}
    for name, entry in read_header(path).items():
        body = raw[entry.offset : entry.offset + entry.length]
        items[name] = [entry.dtype, list(entry.shape), body]
    change(items)
    header, body = {}, b""
    for name, (dtype, shape, payload) in items.items():
        offsets = [len(body), len(body) + len(payload)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += payload
    write_raw(path, header, body)


def write_raw(path: Path, header: object, body: bytes, claimed: int | None = None) -> None:
    """Write a shard whose header length may be a lie (`claimed`)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if claimed is None else claimed
    path.write_bytes(size.to_bytes(8, "little") + text + body)


def poke(directory: Path, name: str, position: int, value: bytes) -> None:
    """Overwrite payload bytes of one tensor."""
    place = Checkpoint(directory, ARCH).file_range(name)
    with place.path.open("r+b") as file:
        file.seek(place.offset + position)
        file.write(value)


def single_file(directory: Path, edit: Callable[[Items], Items] = dict) -> None:
    """Turn the shards into one `model.safetensors`, `edit`ed, without an index."""
    tensors: Items = {}
    for shard in sorted(directory.glob("model-*.safetensors")):
        raw = shard.read_bytes()
        for name, e in read_header(shard).items():
            tensors[name] = [e.dtype, list(e.shape), raw[e.offset : e.offset + e.length]]
        shard.unlink()
    (directory / INDEX_NAME).unlink()
    target = directory / "model.safetensors"
    write_raw(target, {}, b"")
    rebuild(target, lambda items: items.update(edit(tensors)))
