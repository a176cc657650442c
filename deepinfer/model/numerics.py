"""The two numeric modes of the network. Knows no layer and no checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.arch import Arch, Records
from deepinfer.errors import ConfigError


@dataclass(frozen=True)
class Numerics:
    """What is rounded and quantised.

    Attributes:
        name: "checkpoint" (every rounding point of the released model) or "noquant" (weights
            widened to fp32, no quantiser, no rounding to bf16: for comparing mathematics).
        activation: dtype of residual streams and activations.
        quantised: whether activations, weights and cache records are quantised.
    """

    name: str
    activation: torch.dtype
    quantised: bool

    def records(self, arch: Arch) -> Records:
        """Formats of cache records in this mode."""
        return Records.of(arch, quantised=self.quantised)


CHECKPOINT = Numerics("checkpoint", torch.bfloat16, True)
NOQUANT = Numerics("noquant", torch.float32, False)


def numerics(name: str) -> Numerics:
    """Look a mode up by name.

    Raises:
        ConfigError: no such mode.
    """
    for mode in (CHECKPOINT, NOQUANT):
        if mode.name == name:
            return mode
    raise ConfigError(f"numerics {name!r}: use 'checkpoint' or 'noquant'")
