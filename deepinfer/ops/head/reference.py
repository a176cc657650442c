"""The language-model head. Knows nothing of the network below it (D43)."""

from torch import Tensor

from deepinfer.ops.products import matmul


def head(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits of normalised hidden states: [tokens, d] x [vocab, d] -> fp32 [tokens, vocab]."""
    return matmul(hidden, weight)
