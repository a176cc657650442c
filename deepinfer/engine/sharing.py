"""What prompts share, which of their rows run the decoder layers, how many drafts a row verifies:
options become numbers.

Knows nothing of pages. Rules: `dspark-and-replay.md` 9-10, `serving.md` 2.3-2.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from deepinfer.arch import Arch, Records
from deepinfer.cache import first_key
from deepinfer.engine.options import EngineOptions
from deepinfer.errors import ConfigError
from deepinfer.runner.windows import snapshot_bytes
from deepinfer.scheduler import Caching

_EDGE_BYTES = 1 << 20  # read at both ends of a shard to tell checkpoints apart


def decoder_rows(arch: Arch, options: EngineOptions) -> int | None:
    """Last prompt rows that run the decoder layers; None = all of them.

    Raises:
        ConfigError: `decoder_keep` is too short for the window, or has nothing to say.
    """
    mode, keep = options.decoder_replay, options.decoder_keep
    if mode in ("off", "exact") and keep is not None:
        raise ConfigError(f"decoder_keep {keep}: with decoder_replay {mode!r} there is no choice")
    if mode == "off" or arch.boundary_layer is None:
        return None
    window = arch.sliding_window
    if mode == "exact":  # each layer needs the windows of the one before
        return (arch.num_hidden_layers - arch.boundary_layer) * (window - 1) + 1
    least = window + arch.max_draft + 1
    if keep is not None and keep < least:
        raise ConfigError(f"decoder_keep {keep}: this model needs at least {least}")
    return arch.decoder_keep if keep is None else keep


def draft_tokens(arch: Arch, options: EngineOptions) -> int:
    """Drafts verified a step and row.

    Raises:
        ConfigError: the checkpoint has no draft stages, or they propose fewer.
    """
    count = options.speculative().tokens
    if count > arch.max_draft:
        has = f"proposes {arch.max_draft}" if arch.max_draft else "has no draft stages"
        raise ConfigError(f"num_speculative_tokens {count}: this checkpoint {has}; lower it")
    return count


def caching(arch: Arch, records: Records, options: EngineOptions, model: bytes) -> Caching | None:
    """How prompts share pages; None if they do not.

    Args:
        arch: the architecture.
        records: formats of a page.
        options: `enable_prefix_caching`, `deterministic`, `window_snapshot_bytes`, and those of
            `decoder_rows`.
        model: identifies the weights (`fingerprint`).
    """
    if not options.enable_prefix_caching:
        return None
    keep, window = decoder_rows(arch, options), arch.sliding_window
    layers = arch.num_hidden_layers if keep is None else (arch.boundary_layer or 0)
    replay = layers * (window - 1) if options.deterministic else max(keep or 0, arch.decoder_keep)
    semantics = "exact" if options.deterministic else f"bounded {replay}"
    size = 0 if keep is None else snapshot_bytes(arch, records.window.bytes)
    return Caching(
        first_key=first_key(model, repr(records).encode(), semantics.encode(), b""),
        replay=replay,
        exact=options.deterministic,
        snapshots=options.window_snapshot_bytes // size if size else 0,
    )


def fingerprint(directory: Path, options: EngineOptions) -> bytes:
    """Tells checkpoints and ways to load them apart: config, and sizes and edges of the shards."""
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    wishes = (options.load_format, options.numerics, sorted(options.ops.items()))
    digest.update(repr(wishes).encode())
    if options.load_format == "dummy":
        digest.update(str(options.seed).encode())
        return digest.digest()
    for shard in sorted(directory.glob("*.safetensors")):
        digest.update(f"{shard.name} {shard.stat().st_size}".encode())
        for edge in _edges(shard):
            digest.update(edge)
    return digest.digest()


def _edges(shard: Path) -> Iterator[bytes]:
    with shard.open("rb") as file:
        yield file.read(_EDGE_BYTES)
        file.seek(max(0, shard.stat().st_size - _EDGE_BYTES))
        yield file.read(_EDGE_BYTES)
