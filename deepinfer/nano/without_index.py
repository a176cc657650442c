"""A copy of a checkpoint whose indexers choose at random: what look-ups owe to them.

Knows nothing of questions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from torch import Tensor

from deepinfer.arch import TensorSpec, load_arch
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.model.dummy import DummySource
from deepinfer.model.source import FileRange
from deepinfer.model.writer import write_checkpoint

_INDEXER = ".attn.indexer."  # in the names of its tensors


class _Mixed:
    """A `TensorSource`: indexers of one source, all else of another."""

    def __init__(self, trained: Checkpoint, random: DummySource):
        self.specs: dict[str, TensorSpec] = trained.specs
        self._trained, self._random = trained, random

    def file_range(self, name: str) -> FileRange | None:
        """Never in a file."""
        return None

    def read_into(self, name: str, out: Tensor) -> None:
        """See `TensorSource.read_into`."""
        source = self._random if _INDEXER in name else self._trained
        source.read_into(name, out)


def with_random_indexer(model: Path, target: Path, seed: int) -> Path:
    """Write the copy.

    Args:
        model: a checkpoint directory.
        target: the directory to make.
        seed: of the indexers' weights.

    Returns:
        `target`.

    Raises:
        CheckpointError: the checkpoint is damaged, or `target` is in use.
    """
    arch = load_arch(model)
    mixed = _Mixed(Checkpoint(model, arch), DummySource(arch, seed))
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    write_checkpoint(target, arch, mixed, config)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / file, target / file)
    return target
