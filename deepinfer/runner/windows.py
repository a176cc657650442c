"""Window snapshots: what the encoder layers' rings held before a page border, kept on the host.

Copies are ordered by the device's stream, never by waiting. Knows nothing of keys and lifetimes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.device import pinned
from deepinfer.model.state import State
from deepinfer.runner.layout import Slices
from deepinfer.step import StepPlan


class Fresh(NamedTuple):
    """Snapshots of windows that a step computes: token of the last position of each, its place."""

    tokens: NDArray[np.int64]
    places: tuple[int, ...]


def snapshot_bytes(arch: Arch, record_bytes: int) -> int:
    """Bytes of one snapshot; 0 without a boundary layer."""
    return (arch.boundary_layer or 0) * arch.sliding_window * record_bytes


class WindowPool:
    """Places 1..places for snapshots.

    Args:
        arch: the architecture; windows of the layers before its boundary layer are kept.
        state: pools.
        places: snapshots held at a time.
    """

    def __init__(self, arch: Arch, state: State, places: int):
        self._rings = state.windows[: arch.boundary_layer]
        self._window = arch.sliding_window
        self._device = state.slots.device
        shape = (places + 1, len(self._rings), self._window, state.records.window.bytes)
        self._host = pinned(shape, torch.uint8, self._device)

    def keep(self, place: int, windows: Tensor) -> None:
        """Store windows [layers, window, record bytes] at a place."""
        self._host[place].copy_(windows, non_blocking=True)

    def keep_stored(self, place: int, slot: int, end: int) -> None:
        """Store what the rings of a slot hold for the positions before `end`."""
        self.keep(place, torch.stack([ring[slot][self._rows(ring, end)] for ring in self._rings]))

    def restore(self, place: int, slot: int, end: int) -> None:
        """Put the windows at a place into the rings of a slot, for the positions before `end`."""
        windows = self._host[place].to(self._device, non_blocking=True)
        for ring, values in zip(self._rings, windows, strict=True):
            ring[slot][self._rows(ring, end)] = values

    def _rows(self, ring: Tensor, end: int) -> Tensor:
        return torch.arange(end - self._window, end, device=self._device) % ring.shape[1]


def fresh_snapshots(plan: StepPlan, slices: Slices) -> Fresh | None:
    """Where the windows stand in the step that computes them; None if it keeps none."""
    saves = [save for save in plan.snapshots if save.fresh]
    if not saves:
        return None
    first = {
        piece.row: bounds[0] - piece.start
        for piece, bounds in zip(plan.prefill, slices.bounds, strict=True)
    }
    tokens = np.array([first[save.row] + save.end - 1 for save in saves], np.int64)
    return Fresh(tokens, tuple(save.place for save in saves))
