"""The Engram tables: rows of E4M3 codes with E8M0 scales, on the device, in host memory or on disk.

The release's two tables take 101.4 GB each; a token reads 24 rows of 264 bytes per table
(model.md 9.5). It does not know how row ids are computed or what becomes of the rows.
"""

from __future__ import annotations

import os
from typing import Literal, Protocol

import torch
from torch import Tensor

from deepinfer.arch import TensorSpec
from deepinfer.device import mapped
from deepinfer.errors import CheckpointError, ConfigError
from deepinfer.model.source import Faults, FileRange, TensorSource, read

Placement = Literal["device", "host", "disk"]


class EngramTable(Protocol):
    """Rows of one layer's table, wherever they are kept.

    `graph_safe`: looking rows up does not involve the host (other than checking its own memory).
    """

    graph_safe: bool

    def fetch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Look up rows.

        Args:
            rows: int64 [*], each in [0, table rows), on any device.

        Returns:
            codes uint8 [*, head_dim] (E4M3) and scales uint8 [*, head_dim // 32] (E8M0), on the
            device that the table was opened for.

        Raises:
            AssertionError: a row lies outside the table.
            CheckpointError: a row read from disk holds a NaN code or the scale byte 255.
        """
        ...


def open_table(
    source: TensorSource, layer: int, placement: Placement, device: torch.device | str
) -> EngramTable:
    """Open the table of one layer.

    Args:
        source: holds `layers.<layer>.engram.embed.{weight,scale}`.
        layer: index of a layer of config key `engram_layer_ids`.
        placement: "device": resident on `device`, checked while it is read; "host": resident in
            host memory, likewise, where a GPU looks rows up itself; "disk": nothing resident, rows
            are checked as they are read.
        device: where fetched rows go.

    Raises:
        ConfigError: `placement` is "disk" but the source has no files.
        ConfigError: `placement` is "host", but the system does not lock so much memory for a GPU.
        CheckpointError: a resident table holds an unusable value.
    """
    device = torch.device(device)
    names = [f"layers.{layer}.engram.embed.{kind}" for kind in ("weight", "scale")]
    if placement == "disk":
        return _DiskTable([_DiskColumns(source, name) for name in names], device)
    if placement == "device":
        return _ResidentTable([read(source, name, device) for name in names], device)
    columns = [read(source, name, torch.device("cpu")) for name in names]
    return _ResidentTable([mapped(column, device) for column in columns], device)


def _check_rows(rows: Tensor, count: int) -> None:
    if rows.numel() == 0:
        return
    least, most = int(rows.min()), int(rows.max())
    if least < 0 or most >= count:
        raise AssertionError(f"Engram rows {least}..{most} outside a table of {count} rows")


def _to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy gathered rows; from pinned memory the copy does not hold up the host."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


class _ResidentTable:
    """Both columns where the device reads them: its own memory, or the host's."""

    graph_safe = True

    def __init__(self, columns: list[Tensor], device: torch.device):
        self.columns = columns
        self.device = device

    def fetch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        flat = rows.to(self.device).reshape(-1)
        if self.device.type == "cpu":  # on a GPU, `index_select` checks without a round trip
            _check_rows(flat, self.columns[0].shape[0])
        codes, scales = (
            _gathered(column, flat).view(*rows.shape, column.shape[1]) for column in self.columns
        )
        return codes, scales


def _gathered(column: Tensor, rows: Tensor) -> Tensor:
    """Rows of a column, eight bytes a load where it can be: the bus carries few small requests."""
    if column.shape[1] % 8:
        return column.index_select(0, rows)
    return column.view(torch.int64).index_select(0, rows).view(torch.uint8)


class _DiskColumns:
    """One stored tensor of a table, read row by row from its file."""

    def __init__(self, source: TensorSource, name: str):
        self.spec: TensorSpec = source.specs[name]
        place = source.file_range(name)
        if place is None:
            raise ConfigError(
                f"{name}: placement 'disk' needs a checkpoint on disk; use 'host' or 'device'"
            )
        self.place: FileRange = place

    def read_rows(self, rows: list[int]) -> Tensor:
        """Uint8 [len(rows), row bytes]; ascending rows let the disk read forward."""
        width = self.spec.shape[1]
        out = torch.empty(len(rows), width, dtype=torch.uint8)
        view = out.numpy()
        file = os.open(self.place.path, os.O_RDONLY)
        try:
            for position, row in enumerate(rows):
                count = os.preadv(file, [view[position]], self.place.offset + row * width)
                if count != width:
                    raise CheckpointError(
                        str(self.place.path),
                        [f"{self.spec.name}: ended at row {row}; did it change?"],
                    )
        finally:
            os.close(file)
        return out

    def check(self, values: Tensor, rows: list[int]) -> None:
        faults = Faults(self.spec)
        faults.look(values, 0)
        if faults.count:
            position, *rest = faults.first
            faults.first = (rows[position], *rest)
        faults.finish(str(self.place.path))


class _DiskTable:
    """Nothing resident: two reads for each distinct row of a lookup."""

    graph_safe = False

    def __init__(self, columns: list[_DiskColumns], device: torch.device):
        self.columns = columns
        self.device = device

    def fetch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        flat = rows.to("cpu").reshape(-1)
        _check_rows(flat, self.columns[0].spec.shape[0])
        distinct, place = flat.unique(sorted=True, return_inverse=True)
        wanted = distinct.tolist()
        fetched: list[Tensor] = []
        for column in self.columns:
            values = column.read_rows(wanted)
            column.check(values, wanted)
            values = values[place].view(*rows.shape, values.shape[1])
            fetched.append(_to_device(values, self.device))
        return fetched[0], fetched[1]
