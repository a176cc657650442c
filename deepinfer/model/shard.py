"""One safetensors file: its header, checked byte by byte before anything is believed.

Layout: 8 bytes little-endian header length, the header (JSON), then the payload. Every tensor has
`dtype`, `shape` and `data_offsets` counted from the payload's start; together they must tile the
payload without overlap or hole. Knows nothing of architectures.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import cast

ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors format


@dataclass(frozen=True)
class Entry:
    """One tensor of a shard; `offset` counts bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class ShardError(Exception):
    """A shard cannot be read; caught by the checkpoint, which collects all of them."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("; ".join(problems))


def read_header(path: Path) -> dict[str, Entry]:
    """Read and check the header of one shard.

    Returns:
        Entries by stored name.

    Raises:
        ShardError: the header is unreadable, its size is a lie, or the byte ranges do not tile
            the file; every fault is listed.
        OSError: the file cannot be opened or read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        header_bytes = int.from_bytes(first, "little")
        if first.startswith(b"version "):
            raise ShardError(["a git-lfs pointer, not the file itself; run `git lfs pull`"])
        if len(first) < 8 or not 2 <= header_bytes <= min(size - 8, MAX_HEADER_BYTES):
            raise ShardError(
                [
                    f"the header claims {header_bytes} bytes, the file has {size}; "
                    "it is truncated or no safetensors file, fetch it again"
                ]
            )
        raw = file.read(header_bytes)
    try:
        items = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ShardError([f"the header is not readable as JSON: {error}"]) from error
    if not isinstance(items, dict):
        raise ShardError(["the header is no JSON object"])
    payload = 8 + header_bytes
    return _entries(cast("dict[str, object]", items), payload, size)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Object hook that refuses what `json` would silently overwrite."""
    items = dict(pairs)
    if len(items) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = sorted(name for name, count in counts.items() if count > 1)
        raise ValueError(f"keys given twice: {twice}")
    return items


def read_json(path: Path) -> object:
    """Parse a JSON file; keys given twice are a ValueError, like any other fault of the text."""
    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)


def _entries(items: dict[str, object], payload: int, size: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    problems: list[str] = []
    for name, item in items.items():
        if name == "__metadata__":
            continue
        entry = _entry(item, payload)
        if isinstance(entry, str):
            problems.append(f"{name}: {entry}")
        else:
            entries[name] = entry
    problems += _tiling(entries, payload, size, complete=not problems)
    if problems:
        raise ShardError(problems)
    return entries


def _entry(item: object, payload: int) -> Entry | str:
    """One header item, or a sentence that says what is wrong with it."""
    if not isinstance(item, dict):
        return f"header entry {item!r} is no object"
    fields = cast("dict[str, object]", item)
    dtype = fields.get("dtype")
    shape, offsets = _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        return f"header entry {fields!r} lacks a valid dtype, shape or data_offsets"
    if dtype not in ITEM_BYTES:
        return f"dtype {dtype!r} is not known"
    begin, end = offsets
    needed = prod(shape) * ITEM_BYTES[dtype]
    if end - begin != needed:
        return f"bytes {begin}..{end} do not hold {dtype} {list(shape)}, which takes {needed}"
    return Entry(dtype, shape, payload + begin, needed)


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list):
        items = cast("list[object]", value)
        if all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in items):
            return tuple(cast("list[int]", items))
    return None


def _tiling(entries: Mapping[str, Entry], payload: int, size: int, *, complete: bool) -> list[str]:
    """Overlaps, holes and the end; holes only when every entry is `complete`ly understood."""
    problems: list[str] = []
    end, last = payload, "the header"
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].offset, pair[1].length)):
        if entry.offset < end:
            problems.append(f"{name}: its bytes overlap those of {last}")
        elif entry.offset > end and complete:
            problems.append(f"{entry.offset - end} bytes between {last} and {name} belong to none")
        if entry.offset + entry.length > end:
            end, last = entry.offset + entry.length, name
    if end > size:
        problems.append(
            f"truncated: the header describes {end} bytes, the file has {size}; fetch it again"
        )
    elif end < size and complete:
        problems.append(f"{size - end} bytes after {last} belong to no tensor")
    return problems
