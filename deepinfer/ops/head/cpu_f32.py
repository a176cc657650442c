"""The head on the CPU: the weight in fp32, sums in fp32. Knows nothing of the network below it."""

import torch
from torch import Tensor

from deepinfer.ops.cpu_rows import product


def pack(weight: Tensor) -> Tensor:
    """The weight [vocab, d] in fp32: logits keep all their bits."""
    return weight.to(torch.float32)


def head(hidden: Tensor, weight: Tensor) -> Tensor:
    """As the reference but for the order of sums: logits [tokens, vocab] fp32."""
    return product(hidden, weight)
