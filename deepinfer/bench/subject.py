"""What `bench decode` and `bench prefill` measure: a network on a device, and its floors.

A slice of the release with random weights, or any checkpoint directory. Knows nothing of steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepinfer.bench.floors import Floors, Rates
from deepinfer.bench.measure import ceilings, environment
from deepinfer.bench.simulate.setup import release_arch
from deepinfer.bench.slices import RANKS, slice_arch, slice_network
from deepinfer.device import Device, find_device
from deepinfer.engine.build import load
from deepinfer.engine.options import EngineOptions
from deepinfer.errors import ConfigError
from deepinfer.model.engram_table import Placement
from deepinfer.model.network import Network

Record = dict[str, Any]
_REPEATS = 5
_CPU_BYTES = 1 << 28  # many times a cache, and read in a moment
_CPU_SIDE = 1024


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        name: of the model, for the records.
        network: loaded weights.
        device: where they are.
        floors: of the model, with the ceilings of this run.
    """

    name: str
    network: Network
    device: Device
    floors: Floors

    def record(self) -> Record:
        """What every record of this run says of it."""
        rates = self.floors.rates
        return {
            "model": self.name,
            "read_tb_s": rates.read * 1e-12,
            "matmul_tflop_s": rates.matmul * 1e-12,
            **environment(self.device.torch),
        }


def open_slice(
    name: str,
    device: str,
    ops: Mapping[str, str],
    *,
    draft: bool,
    engram: Placement = "device",
) -> Subject:
    """One rank of a group with random weights, and the ceilings of its device.

    Args:
        name: see `slices.RANKS`.
        device: "auto", "cpu", "cuda" or "cuda:N".
        ops: operation name -> implementation name.
        draft: with draft stages.
        engram: where the n-gram tables are.

    Raises:
        ConfigError: there is no such slice or device, or the device is a CPU: a slice's weights,
            decoded as the CPU wants them, take more memory than most have.
    """
    found, arch = find_device(device), slice_arch(name, draft=draft)
    if found.torch.type == "cpu":
        raise ConfigError(
            f"slice {name}: slices of the release are measured on a GPU and {found.name} is none; "
            "use --device cuda, or --model nano on a CPU"
        )
    network = slice_network(arch, found, ops, engram=engram)
    return Subject(name, network, found, Floors(release_arch(), rates(found), RANKS[name]))


def open_directory(
    name: str,
    directory: Path,
    device: str,
    ops: Mapping[str, str],
    engram: Placement = "device",
) -> Subject:
    """A checkpoint, and the ceilings of its device.

    Args:
        name: of the model, for the records.
        directory: the checkpoint.
        device: "auto", "cpu", "cuda" or "cuda:N".
        ops: operation name -> implementation name.
        engram: where the n-gram tables are.

    Raises:
        DeepinferError: the model cannot be loaded.
    """
    found = find_device(device)
    network = load(directory, found, EngineOptions(device=device, ops=ops, engram=engram))
    return Subject(name, network, found, Floors(network.arch, rates(found)))


def rates(device: Device) -> Rates:
    """Ceilings of this run; a CPU's are rough: one sum of 256 MB and one bf16 product of 1024^3."""
    if device.torch.type == "cuda":
        found = ceilings(device.torch)
        return Rates(found.read, found.matmul, found.matmul)
    data = torch.ones(_CPU_BYTES // 4)
    a = torch.ones((_CPU_SIDE, _CPU_SIDE), dtype=torch.bfloat16)
    product = 2 * _CPU_SIDE**3 / _seconds(lambda: a @ a)
    return Rates(_CPU_BYTES / _seconds(data.sum), product, product)


def _seconds(run: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
