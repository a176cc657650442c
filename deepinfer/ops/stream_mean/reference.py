"""What the drafter sees of a layer: the mean of its streams. Knows no layers.

Source: `spec/model.md` 10.1.
"""

from __future__ import annotations

from torch import Tensor


def stream_mean(streams: Tensor) -> Tensor:
    """Mean over the streams [tokens, m, hidden] in fp32, rounded once: [tokens, hidden]."""
    return streams.float().mean(1).to(streams.dtype)
