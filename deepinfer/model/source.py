"""Where weights come from: the one interface that model code reads tensors through.

Owns the mapping from stored to torch dtypes and the two checks that every source shares: are all
tensors of an architecture there, and are their values usable. It does not know files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from deepinfer.arch import Arch, Dtype, TensorSpec, tensor_specs
from deepinfer.arch.tensors import Part
from deepinfer.errors import CheckpointError

# The narrow formats stay raw bytes: torch has few operations for them, and a numeric copy of an
# E8M0 exponent into uint8 destroys it (model.md 11.1).
STORED_DTYPE: Mapping[Dtype, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.uint8,
    "F8_E8M0": torch.uint8,
    "I8": torch.uint8,
}
ALL_PARTS: tuple[Part, ...] = ("embedding", "backbone", "engram", "draft", "vision")
DRAFT_PREFIX = "mtp."
# Tensors under these names may be there whatever the config says (model-decisions.md D60).
_VISION_PREFIXES = ("vision.", "aligner.", "image_")


@dataclass(frozen=True)
class FileRange:
    """The payload of one tensor: `length` bytes from byte `offset` of `path`, row-major."""

    path: Path
    offset: int
    length: int


class TensorSource(Protocol):
    """Where weights come from.

    Tensors arrive as stored: BF16 as bfloat16, F32 as float32, F8_E4M3, F8_E8M0 and I8 as uint8
    (raw bytes).
    """

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor that the architecture needs and this source holds, by name."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill `out` with one tensor.

        Args:
            name: a key of `specs`.
            out: stored shape, dtype of `STORED_DTYPE`, any strides, any device.

        Raises:
            CheckpointError: the values are not usable (see `invalid_values`).
        """
        ...

    def file_range(self, name: str) -> FileRange | None:
        """Where the payload lies; None when it is in no file."""
        ...


class MemorySource:
    """A `TensorSource` over tensors that are already in memory, e.g. freshly trained ones.

    Args:
        arch: the architecture they belong to.
        tensors: by checkpoint name, in stored form (quantised weights as uint8).

    Raises:
        CheckpointError: a tensor is missing, unexpected, or has another shape or dtype.
    """

    def __init__(self, arch: Arch, tensors: Mapping[str, Tensor]):
        self.specs, problems = select_specs(arch, tensors)
        self._tensors = tensors
        for name, spec in self.specs.items():
            if name not in tensors:
                continue
            found = tensors[name]
            if tuple(found.shape) != spec.shape or found.dtype != STORED_DTYPE[spec.dtype]:
                problems.append(
                    f"{name}: found {found.dtype} {list(found.shape)}, "
                    f"needs {STORED_DTYPE[spec.dtype]} {list(spec.shape)}"
                )
        if problems:
            raise CheckpointError("tensors in memory", problems)

    def read_into(self, name: str, out: Tensor) -> None:
        """See `TensorSource.read_into`."""
        check_out(self.specs[name], out)
        faults = Faults(self.specs[name])
        out.copy_(self._tensors[name])
        faults.look(out, 0)
        faults.finish("tensors in memory")

    def file_range(self, name: str) -> FileRange | None:
        """Never in a file."""
        return None


def read(source: TensorSource, name: str, device: torch.device | str = "cpu") -> Tensor:
    """Allocate one tensor and read it.

    Returns:
        The stored shape in the dtype of `STORED_DTYPE`, contiguous, on `device`.
    """
    spec = source.specs[name]
    out = torch.empty(spec.shape, dtype=STORED_DTYPE[spec.dtype], device=device)
    source.read_into(name, out)
    return out


def has_part(source: TensorSource, part: Part) -> bool:
    """Whether the source holds any tensor of a part; draft stages may be absent."""
    return any(spec.part == part for spec in source.specs.values())


def select_specs(
    arch: Arch, names: Collection[str], parts: Collection[Part] = ALL_PARTS
) -> tuple[dict[str, TensorSpec], list[str]]:
    """Compare the names a source holds with those the architecture needs, both ways.

    Draft stages may be absent as a whole; anything else that is needed must be there. Unknown
    names are refused, except those of the vision tower (model-decisions.md D60).

    Args:
        arch: what is needed.
        names: what is there.
        parts: parts that are wanted; tensors of others may be there or not.

    Returns:
        The wanted specs by name, in checkpoint order, and one sentence a fault.
    """
    known = {spec.name: spec for spec in tensor_specs(arch)}
    drafts = any(name.startswith(DRAFT_PREFIX) for name in names)
    wanted = {
        name: spec
        for name, spec in known.items()
        if spec.part in parts and (drafts or spec.part != "draft")
    }
    problems = [f"{name}: missing" for name in wanted if name not in names]
    problems += [
        f"{name}: unexpected, no tensor of this architecture; is this the right config.json?"
        for name in names
        if name not in known and not name.startswith(_VISION_PREFIXES)
    ]
    return wanted, problems


def check_out(spec: TensorSpec, out: Tensor) -> None:
    """Assert that `out` can take the tensor; a mismatch is a bug of the caller."""
    wanted = (spec.shape, STORED_DTYPE[spec.dtype])
    found = (tuple(out.shape), out.dtype)
    assert found == wanted, f"read_into({spec.name}): out is {found}, the tensor is {wanted}"


def invalid_values(dtype: Dtype, stored: Tensor) -> Tensor | None:
    """Mark what no weight may be: NaN and infinity, and the NaN codes of E4M3 and E8M0.

    Returns:
        bool of the same shape; None for I8, where every byte is two valid FP4 codes.
    """
    if dtype == "BF16":
        return (stored.view(torch.int16) & 0x7F80) == 0x7F80  # all exponent bits set
    if dtype == "F32":
        return (stored.view(torch.int32) & 0x7F800000) == 0x7F800000
    if dtype == "F8_E4M3":
        return (stored & 0x7F) == 0x7F
    if dtype == "F8_E8M0":
        return stored == 0xFF
    return None


class Faults:
    """Counts unusable values of one tensor over its chunks."""

    def __init__(self, spec: TensorSpec):
        self.spec = spec
        self.count = 0
        self.first: tuple[int, ...] = ()

    def look(self, rows: Tensor, start: int) -> None:
        """Check `rows`, whose first one is row `start` of the tensor."""
        bad = invalid_values(self.spec.dtype, rows)
        if bad is None or not bool(bad.any()):
            return
        if not self.count:
            row, *rest = bad.nonzero()[0].tolist()
            self.first = (start + row, *rest)
        self.count += int(bad.sum())

    def finish(self, where: str) -> None:
        """Raise `CheckpointError` if any chunk held a fault."""
        if self.count:
            what = "scale bytes 255" if self.spec.dtype == "F8_E8M0" else "NaN or infinite values"
            raise CheckpointError(
                where,
                [
                    f"{self.spec.name}: {self.count} {what}, the first at index "
                    f"{list(self.first)}; the file is damaged, fetch it again and compare its "
                    "checksum with the published one"
                ],
            )
