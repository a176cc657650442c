"""Opens a model for the offline job: device, weights, tokenizer, engine.

Knows nothing of prompts.
"""

from __future__ import annotations

from pathlib import Path

from deepinfer.device import find_device
from deepinfer.engine.jobs import Offline
from deepinfer.engine.sequential import Sequential
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.model.load import LoadOptions, load_network


def open_offline(
    directory: Path,
    options: LoadOptions,
    *,
    device: str = "auto",
    max_model_len: int | None = None,
    chunk: int = 2048,
    decoder_keep: int | None = None,
) -> Offline:
    """Load a checkpoint and put an engine for one request at a time around it.

    Args:
        directory: the checkpoint directory.
        options: numerics, load format, placement of the n-gram tables, implementations.
        device: see `device.find_device`.
        max_model_len: see `Sequential`.
        chunk: see `Sequential`.
        decoder_keep: see `Sequential`.

    Raises:
        DeepinferError: the model cannot be loaded as asked for; see `load_network`.
    """
    place = find_device(device)
    network = load_network(directory, place.torch, place.arch, options)
    engine = Sequential(
        network, place, max_model_len=max_model_len, chunk=chunk, decoder_keep=decoder_keep
    )
    tokenizer = None
    if (directory / "tokenizer.json").exists():
        tokenizer = TextTokenizer(directory, network.arch)
    return Offline(engine, tokenizer)
