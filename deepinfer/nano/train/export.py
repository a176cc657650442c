"""From masters to a checkpoint that the engine loads. It does not know how they were trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from deepinfer.arch import Arch, parse_arch
from deepinfer.model.engram_map import token_classes
from deepinfer.model.writer import write_checkpoint
from deepinfer.nano.shape import trained_config
from deepinfer.nano.tokenizer import IMAGE_TOKEN, NOISE_TOKEN, tokenizer_config
from deepinfer.nano.train.masters import stored

CALIBRATION = "calibration.json"
_SHARDS = 2


def config_for(tokenizer: Tokenizer) -> dict[str, object]:
    """The `config.json` of the trained model with this tokenizer."""
    noise, image = tokenizer.token_to_id(NOISE_TOKEN), tokenizer.token_to_id(IMAGE_TOKEN)
    assert noise is not None
    assert image is not None
    return trained_config(noise, image, int(token_classes(tokenizer).max()) + 1)


def export(
    directory: Path,
    masters: Mapping[str, Tensor],
    config: Mapping[str, object],
    tokenizer: Tokenizer,
) -> Arch:
    """Write a complete checkpoint into a new directory.

    Args:
        directory: must not exist; its parent must.
        masters: of the architecture that `config` describes.
        config: written as `config.json`.
        tokenizer: of the same vocabulary.

    Returns:
        the architecture.
    """
    arch = parse_arch(config)
    write_checkpoint(directory, arch, stored(masters, arch), config, _SHARDS)
    tokenizer.save(str(directory / "tokenizer.json"))
    described = json.dumps(tokenizer_config(arch.max_position_embeddings), ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(described + "\n", encoding="utf-8")
    return arch


def write_calibration(directory: Path, temperature: Sequence[float]) -> None:
    """Write `calibration.json`, as the release's format has no place for it.

    Args:
        directory: of the checkpoint.
        temperature: what the drafter's confidences are divided by, one for each draft of a block.
    """
    said = json.dumps({"temperature": [round(value, 4) for value in temperature]})
    (directory / CALIBRATION).write_text(said + "\n", encoding="utf-8")
