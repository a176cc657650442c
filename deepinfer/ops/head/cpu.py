"""The head on the CPU: as the reference, but the weight is never widened as a whole."""

from torch import Tensor

from deepinfer.ops.cpu_tiles import product
from deepinfer.ops.products import WIDE


def head(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits [tokens, vocab] fp32."""
    return product(hidden.to(WIDE), weight)
