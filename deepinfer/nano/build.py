"""Where the embedded models are: the trained one of the package, a random one built from a seed.

The files are those of any checkpoint: config, tokenizer, shards, index. Both are made in a cache
directory, once; the package holds the trained shards compressed. This file does not know who loads
a model.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from deepinfer.arch import parse_arch
from deepinfer.errors import ConfigError
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_map import EngramMap, token_classes
from deepinfer.model.writer import write_checkpoint
from deepinfer.nano.corpus import corpus
from deepinfer.nano.shape import VOCAB_SIZE, nano_config
from deepinfer.nano.tokenizer import (
    HIDDEN_TOKENS,
    IMAGE_TOKEN,
    NOISE_TOKEN,
    PLAIN_TOKENS,
    tokenizer_config,
    train_tokenizer,
)

TRAINED = Path(__file__).with_name("weights")
RANDOM_NOTE = "note: this model has random weights; its answers mean nothing"
SEED = 41
SHARDS = 2
# Raise it when anything outside `_key` changes the files: seeded weights, BPE training.
VERSION = 1


def builtin_models(cache: Callable[[], Path]) -> dict[str, Callable[[], Path]]:
    """Names of embedded models and what makes their directory ready.

    Args:
        cache: asked for the directory for built files.
    """
    return {
        "nano": lambda: nano_directory(cache()),
        "nano-random": lambda: random_directory(cache()),
    }


def is_random(name: str) -> bool:
    """Whether a model name means an embedded model without trained weights."""
    return name == "nano-random"


def nano_directory(cache: Path) -> Path:
    """The checkpoint directory of the trained model, unpacked if it is not there yet.

    As `random_directory` otherwise.
    """
    files = sorted(TRAINED.iterdir())
    contents = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return _made(cache, f"nano-trained-{contents.hexdigest()[:16]}", _unpack)


def random_directory(cache: Path) -> Path:
    """The checkpoint directory of the random model, built if it is not there yet.

    Safe when several processes build at once: each builds aside, the first one to finish is kept.

    Args:
        cache: directory for built files, made if missing; about 22 MB are written to it.

    Raises:
        ConfigError: the cache cannot be written.
    """
    return _made(cache, f"nano-{_key()}", _build)


def _made(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    finished = cache / name
    if finished.is_dir():
        return finished
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".nano-", dir=cache) as aside:
            made = Path(aside) / "model"
            make(made)
            _publish(made, finished)
    except OSError as error:
        raise ConfigError(
            f"cannot build the nano model in {cache}: {error}; "
            "set DEEPINFER_CACHE_DIR to a directory with 50 MB of free space"
        ) from error
    return finished


def _publish(made: Path, finished: Path) -> None:
    try:
        made.rename(finished)
    except OSError:
        if not finished.is_dir():  # otherwise another process was faster, with the same files
            raise


def _unpack(directory: Path) -> None:
    directory.mkdir()
    for file in TRAINED.iterdir():
        content = file.read_bytes()
        if file.suffix == ".xz":
            (directory / file.stem).write_bytes(lzma.decompress(content))
        else:
            (directory / file.name).write_bytes(content)


def _build(directory: Path) -> None:
    tokenizer = train_tokenizer(corpus(SEED), VOCAB_SIZE)
    config = _config(tokenizer)
    arch = parse_arch(config, "config.json of nano")
    assert arch.engram is not None
    EngramMap.build(arch.engram, tokenizer, arch.vocab_size)  # the counts in shape.py are right
    write_checkpoint(directory, arch, DummySource(arch, SEED), config, SHARDS)
    tokenizer.save(str(directory / "tokenizer.json"))
    described = json.dumps(tokenizer_config(arch.max_position_embeddings), ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(described + "\n", encoding="utf-8")


def _config(tokenizer: Tokenizer) -> dict[str, object]:
    noise, image = tokenizer.token_to_id(NOISE_TOKEN), tokenizer.token_to_id(IMAGE_TOKEN)
    assert noise is not None
    assert image is not None
    return nano_config(noise, image, token_classes=int(token_classes(tokenizer).max()) + 1)


def _key() -> str:
    """Digest of what decides the files, so that a changed model gets a directory of its own."""
    parts = [
        VERSION,
        SEED,
        SHARDS,
        corpus(SEED),
        PLAIN_TOKENS,
        HIDDEN_TOKENS,
        nano_config(noise_token_id=0, image_token_id=0, token_classes=1),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
