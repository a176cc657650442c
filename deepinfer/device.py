"""What the machine is: the only place that speaks to `torch.cuda`.

Knows nothing of models; it turns a wish ("auto", "cpu", "cuda:0") into a device and static facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from deepinfer.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """A place to compute.

    Attributes:
        torch: the torch device.
        arch: static fact for choosing implementations: "cpu", "sm90", "sm100", ...
        name: for people.
        memory_bytes: memory of the device, None for the CPU.
    """

    torch: torch.device
    arch: str
    name: str
    memory_bytes: int | None

    def synchronize(self) -> None:
        """Wait for everything enqueued on the device."""
        if self.torch.type == "cuda":
            torch.cuda.synchronize(self.torch)

    def memory_free(self) -> int | None:
        """Bytes that can be taken now; None where the system does not tell."""
        if self.torch.type == "cuda":
            free, _total = torch.cuda.mem_get_info(self.torch)
            return free
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        except OSError:  # no Linux
            return None
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024


def find_device(wish: str = "auto") -> Device:
    """The device to use.

    Args:
        wish: "auto" (the first GPU if there is one, else the CPU), "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: the wish is no device name, or there is no such GPU.
    """
    if wish == "auto":
        wish = "cuda:0" if torch.cuda.is_available() else "cpu"
    if wish == "cpu":
        return Device(torch.device("cpu"), "cpu", "CPU", None)
    kind, _, number = wish.partition(":")
    if kind != "cuda" or not (number.isdecimal() or wish == "cuda"):
        raise ConfigError(f"device {wish!r}: use 'auto', 'cpu', 'cuda' or 'cuda:N'")
    index = int(number or 0)
    count = torch.cuda.device_count()
    if index >= count:
        raise ConfigError(
            f"device {wish!r}: this machine shows {count} GPU(s) to torch {torch.__version__}; "
            "use 'cpu', or install a CUDA build of torch"
        )
    properties = torch.cuda.get_device_properties(index)
    arch = f"sm{properties.major}{properties.minor}"
    return Device(torch.device("cuda", index), arch, properties.name, properties.total_memory)
