"""A checkpoint directory as a tensor source: `config.json`, an index, safetensors shards.

Opening reads the index and the headers only and checks everything that can be checked without the
payload; all faults come in one error. Payload is read in bounded chunks straight into its
destination. It does not know what a tensor is used for.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import torch
from torch import Tensor

from deepinfer.arch import Arch, TensorSpec, tensor_specs
from deepinfer.arch.tensors import Part
from deepinfer.errors import CheckpointError
from deepinfer.model.shard import Entry, ShardError, read_header, read_json
from deepinfer.model.source import (
    ALL_PARTS,
    Faults,
    FileRange,
    check_out,
    has_part,
    select_specs,
)

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
CHUNK_BYTES = 4 << 20  # full disk speed; checking a chunk takes about twice as much in passing
_PREFIX = "model."


class Checkpoint:
    """A `TensorSource` over a checkpoint directory.

    Names may carry a `model.` prefix (model-decisions.md D60); `specs` never does. Links to files
    elsewhere are followed, since hub caches are made of them; names in the index that lead out of
    the directory are refused.

    Args:
        directory: holds `model.safetensors.index.json` and its shards, or `model.safetensors`.
        arch: the architecture of its `config.json`.
        parts: parts to offer. Tensors of other parts need not be there.
        progress: called with the number of payload bytes just read, after each chunk.

    Raises:
        CheckpointError: anything is missing, unexpected, stored twice, truncated, or of another
            shape or dtype. All faults are listed.
    """

    def __init__(
        self,
        directory: str | Path,
        arch: Arch,
        *,
        parts: Collection[Part] = ALL_PARTS,
        progress: Callable[[int], None] | None = None,
    ):
        self.directory = Path(directory)
        self._progress = progress
        opening = _Opening(self.directory, arch, parts)
        self.specs: dict[str, TensorSpec] = opening.specs
        self._ranges = opening.ranges

    @property
    def has_draft(self) -> bool:
        """Whether the draft stages (`mtp.*`) are there; a config may name stages without them."""
        return has_part(self, "draft")

    def file_range(self, name: str) -> FileRange:
        """The bytes of one tensor on disk."""
        return self._ranges[name]

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill `out` with one tensor, chunk by chunk, and check its values.

        Args:
            name: a key of `specs`.
            out: stored shape, dtype of `STORED_DTYPE`, any strides, any device.

        Raises:
            CheckpointError: a value is NaN or infinite, a scale byte is 255, or the file ended
                early because it changed after it was opened.
        """
        spec, place = self.specs[name], self._ranges[name]
        check_out(spec, out)
        faults = Faults(spec)
        row_bytes = place.length // spec.shape[0]
        rows = min(max(1, CHUNK_BYTES // row_bytes), spec.shape[0])
        direct = out.device.type == "cpu" and out.is_contiguous()
        # Host memory that the device copies from; a CPU tensor is read in place instead.
        staging = None if direct else torch.empty(rows * row_bytes, dtype=torch.uint8)
        with place.path.open("rb", buffering=0) as file:
            file.seek(place.offset)
            for start in range(0, spec.shape[0], rows):
                part = out[start : start + rows]
                count = part.shape[0] * row_bytes
                if staging is None:
                    self._fill(file, part.view(torch.uint8).view(-1), name)
                else:
                    self._fill(file, staging[:count], name)
                    part.copy_(staging[:count].view(part.dtype).view(part.shape))
                faults.look(part, start)
                if self._progress is not None:
                    self._progress(count)
        faults.finish(str(place.path))

    def _fill(self, file: BinaryIO, into: Tensor, name: str) -> None:
        """Read exactly `into.numel()` bytes; one system call may return fewer."""
        view = into.numpy().data
        while view:
            count = file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise CheckpointError(
                    str(self.directory), [f"{name}: its file ended early; did it change?"]
                )
            view = view[count:]


class _Opening:
    """The checks of one opening; leaves `specs` and `ranges` or raises."""

    def __init__(self, directory: Path, arch: Arch, parts: Collection[Part]):
        self.directory = directory
        self.arch = arch
        self.problems: list[str] = []
        self.headers: dict[str, dict[str, Entry]] = {}
        if not directory.is_dir():
            raise CheckpointError(
                str(directory), ["no such directory; give a checkpoint directory"]
            )
        index = self._index()
        self._raise()  # without an index every tensor would be reported
        self._open_shards(index, parts)
        found: dict[str, list[tuple[str, Entry]]] = defaultdict(list)
        for shard, header in self.headers.items():
            for stored, entry in header.items():
                found[stored.removeprefix(_PREFIX)].append((shard, entry))
        self.specs, missing = select_specs(arch, index.keys() | found.keys(), parts)
        self.problems += missing
        self._compare(index, found)
        self.ranges = self._check(index, found)
        self._raise()

    def _raise(self) -> None:
        if self.problems:
            raise CheckpointError(str(self.directory), self.problems)

    def _index(self) -> dict[str, str]:
        """Which shard holds which tensor, by name without prefix."""
        path = self.directory / INDEX_NAME
        try:
            data = read_json(path)
        except FileNotFoundError:
            return self._single()
        except (OSError, ValueError, RecursionError) as error:
            self.problems.append(f"{INDEX_NAME}: not readable as JSON: {error}")
            return {}
        mapping: object = None
        if isinstance(data, dict):
            mapping = cast("dict[str, object]", data).get("weight_map")
        if not isinstance(mapping, dict) or not all(isinstance(v, str) for v in mapping.values()):
            self.problems.append(f"{INDEX_NAME}: 'weight_map' is no object of file names")
            return {}
        stored = cast("dict[str, str]", mapping)
        index: dict[str, str] = {}
        for name, shard in stored.items():
            bare = name.removeprefix(_PREFIX)
            if bare in index:
                self.problems.append(f"{bare}: listed twice in the index, with and without prefix")
            index[bare] = shard
        named = set(stored.values())
        for path in sorted(self.directory.glob("model*.safetensors")):
            if path.name not in named:
                self.problems.append(
                    f"{path.name}: not named in {INDEX_NAME}; move it away or fetch the index again"
                )
        return index

    def _single(self) -> dict[str, str]:
        path = self.directory / SINGLE_NAME
        if not path.exists() and not path.is_symlink():
            self.problems.append(f"holds neither {INDEX_NAME} nor {SINGLE_NAME}")
            return {}
        self._open(SINGLE_NAME, path)
        names = self.headers.get(SINGLE_NAME, {})
        return {name.removeprefix(_PREFIX): SINGLE_NAME for name in names}

    def _open_shards(self, index: Mapping[str, str], parts: Collection[Part]) -> None:
        """Open every shard, except those that hold nothing but parts nobody asked for."""
        unasked = {spec.name for spec in tensor_specs(self.arch) if spec.part not in parts}
        shards = {shard for name, shard in index.items() if name not in unasked}
        seen: dict[tuple[int, int], str] = {}
        for shard in sorted(shards - self.headers.keys()):
            path = PurePosixPath(shard)
            if path.is_absolute() or ".." in path.parts or "\0" in shard or not path.parts:
                self.problems.append(
                    f"{shard!r}: named in the index but outside the directory; refused"
                )
                continue
            identity = self._open(shard, self.directory / path)
            if identity is not None and seen.setdefault(identity, shard) != shard:
                self.problems.append(f"{shard}: the same file as {seen[identity]}, listed twice")
                del self.headers[shard]

    def _open(self, shard: str, path: Path) -> tuple[int, int] | None:
        """Read one header; returns what identifies the file, or None if it is of no use."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                self.problems.append(f"{shard}: no regular file")
                return None
            self.headers[shard] = read_header(path)
        except FileNotFoundError:
            self.problems.append(f"{shard}: shard missing, named in the index; fetch it")
        except OSError as error:  # includes link loops
            self.problems.append(f"{shard}: cannot be read: {error.strerror or error}")
        except ShardError as error:
            self.problems += [f"{shard}: {problem}" for problem in error.problems]
        else:
            return status.st_dev, status.st_ino
        return None

    def _compare(
        self, index: Mapping[str, str], found: Mapping[str, list[tuple[str, Entry]]]
    ) -> None:
        """The index says where each tensor is; the headers must say the same, once."""
        for name, places in found.items():
            shards = [shard for shard, _ in places]
            if len(shards) > 1:
                self.problems.append(f"{name}: stored {len(shards)} times, in {', '.join(shards)}")
            elif name not in index:
                self.problems.append(f"{name}: stored in {shards[0]} but not listed in the index")
            elif index[name] != shards[0] and index[name] in self.headers:
                self.problems.append(
                    f"{name}: stored in {shards[0]}, but the index says {index[name]}"
                )
        for name, shard in index.items():
            if name not in found and shard in self.headers:
                self.problems.append(f"{name}: missing from {shard}, where the index places it")

    def _check(
        self, index: Mapping[str, str], found: Mapping[str, list[tuple[str, Entry]]]
    ) -> dict[str, FileRange]:
        """Compare dtype and shape with the architecture and note where each payload lies."""
        ranges: dict[str, FileRange] = {}
        for name, spec in self.specs.items():
            for shard, entry in found.get(name, []):
                if (entry.dtype, entry.shape) != (spec.dtype, spec.shape):
                    self.problems.append(
                        f"{name}: {entry.dtype} {list(entry.shape)} in {shard}, the architecture "
                        f"needs {spec.dtype} {list(spec.shape)}"
                    )
                ranges[name] = FileRange(self.directory / shard, entry.offset, entry.length)
        return ranges
