"""Writes a checkpoint in the release's format: shards, index, `config.json`.

The directory appears complete or not at all. It does not know how weights are made or quantised.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.arch import Arch, TensorSpec, parse_arch
from deepinfer.arch.tensors import ITEM_BYTES
from deepinfer.errors import CheckpointError
from deepinfer.model.checkpoint import INDEX_NAME
from deepinfer.model.source import MemorySource, TensorSource, read


def write_checkpoint(
    directory: str | Path,
    arch: Arch,
    tensors: TensorSource | Mapping[str, Tensor],
    config: Mapping[str, object],
    shards: int = 1,
) -> None:
    """Write every tensor of `arch`, one at a time, into a new directory.

    Args:
        directory: must not exist, or be empty; its parent must exist.
        arch: decides names, dtypes, shapes and order.
        tensors: a source, or tensors by name in stored form. Without any `mtp.*` tensor the
            checkpoint has no draft stages.
        config: written as `config.json`; must describe `arch`.
        shards: number of files, >= 1; contiguous runs of tensors of about equal bytes.

    Raises:
        CheckpointError: the directory is in use, `config` describes another architecture, a
            tensor is missing, unexpected or of another form, or a value is not finite.
        ConfigError: `config` is not accepted at all.
        ValueError: `shards` is below 1 or above the number of tensors.
    """
    directory = Path(directory)
    if parse_arch(config) != arch:
        raise CheckpointError(str(directory), ["`config` describes another architecture"])
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointError(str(directory), ["exists and is not empty; choose another name"])
    source = MemorySource(arch, tensors) if isinstance(tensors, Mapping) else tensors
    runs = _split(list(source.specs.values()), shards)
    # A sibling, so that the final rename stays within one file system.
    partial = directory.parent / f".{directory.name}.{os.getpid()}.partial"
    partial.mkdir()
    try:
        weight_map: dict[str, str] = {}
        for number, run in enumerate(runs, 1):
            name = f"model-{number:05d}-of-{shards:05d}.safetensors"
            _write_shard(partial / name, run, source)
            weight_map.update({spec.name: name for spec in run})
        total = sum(spec.bytes for spec in source.specs.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(partial / INDEX_NAME, index)
        _write_json(partial / "config.json", config)
        partial.rename(directory)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _split(specs: Sequence[TensorSpec], shards: int) -> list[list[TensorSpec]]:
    """Cut the list into `shards` runs, each at least one tensor, of about equal bytes."""
    if not 1 <= shards <= len(specs):
        raise ValueError(f"{shards=}: must be between 1 and the number of tensors, {len(specs)}")
    total = sum(spec.bytes for spec in specs)
    runs: list[list[TensorSpec]] = [[]]
    done = 0
    for position, spec in enumerate(specs):
        left = shards - len(runs)
        full = done * shards >= total * len(runs) or len(specs) - position == left
        if runs[-1] and left and full:
            runs.append([])
        runs[-1].append(spec)
        done += spec.bytes
    return runs


def _write_shard(path: Path, specs: Sequence[TensorSpec], source: TensorSource) -> None:
    # Wide items first: with an aligned header every tensor is then aligned to its item size.
    ordered = sorted(specs, key=lambda spec: -ITEM_BYTES[spec.dtype])
    text = json.dumps(dict(_header(ordered)), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the payload starts at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for spec in ordered:
            file.write(read(source, spec.name).view(torch.uint8).view(-1).numpy().data)


def _header(specs: Sequence[TensorSpec]) -> Iterator[tuple[str, object]]:
    yield "__metadata__", {"format": "pt"}
    begin = 0
    for spec in specs:
        end = begin + spec.bytes
        yield (
            spec.name,
            {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]},
        )
        begin = end
