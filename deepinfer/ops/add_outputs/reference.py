"""Routed and shared experts together. Knows neither."""

from __future__ import annotations

import torch
from torch import Tensor


def add_outputs(routed: Tensor, shared: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Sum of two outputs [tokens, hidden] in fp32, rounded once to `dtype`."""
    out = torch.empty(routed.shape, dtype=dtype, device=routed.device)
    return torch.add(routed, shared, out=out)
