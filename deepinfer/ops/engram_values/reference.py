"""Table rows as the input of the Engram projection. Knows neither tables nor hashes."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.formats import Quantised, dequantise_fp8


def engram_values(codes: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Decode the rows of each token and join them (D47).

    Args:
        codes: [tokens, rows, dim] uint8 E4M3.
        scale: [tokens, rows, dim / 32] uint8 E8M0.
        dtype: of the result, in which values are exact but for scales near the ends.

    Returns:
        [tokens, rows * dim].
    """
    return dequantise_fp8(Quantised(codes, scale)).flatten(1).to(dtype)
