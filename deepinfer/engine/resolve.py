"""Which directory a model name means. It knows nothing of what a directory must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from deepinfer.errors import ConfigError


def resolve_model(name: str, builtin: Mapping[str, Callable[[], Path]]) -> Path:
    """Find the checkpoint directory of a model.

    A built-in name wins over a directory of the same name; write `./name` for the directory.

    Args:
        name: a built-in name, or the path of a directory; `~` is expanded.
        builtin: built-in names and what makes their directory ready.

    Raises:
        ConfigError: the name is neither; the message lists what would be accepted.
    """
    if name in builtin:
        return builtin[name]()
    directory = Path(name).expanduser() if name else None
    if directory is not None and directory.is_dir():
        return directory
    found = "that path is a file" if directory is not None and directory.exists() else "not found"
    names = ", ".join(repr(known) for known in sorted(builtin))
    accepted = "a checkpoint directory" + (f", or a built-in model: {names}" if names else "")
    raise ConfigError(f"model {name!r}: {found}; give {accepted}")
