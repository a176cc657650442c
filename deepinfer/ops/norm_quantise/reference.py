"""RMSNorm followed by FP8 quantisation, once for all the products that read the result."""

from typing import NamedTuple

from torch import Tensor

from deepinfer.ops.formats import Quantised, quantise_fp8
from deepinfer.ops.products import rms_norm


class Normed(NamedTuple):
    """`hidden` [tokens, n] in the input's dtype and its FP8 pair (None without quantisers)."""

    hidden: Tensor
    quantised: Quantised | None

    @property
    def input(self) -> Tensor | Quantised:
        """The form that quantised products take."""
        return self.hidden if self.quantised is None else self.quantised


def norm_quantise(x: Tensor, weight: Tensor, *, eps: float, quantise: bool) -> Normed:
    """RMSNorm of [tokens, n] (fp32 inside, rounded once), then FP8 of the rounded rows (D6, D7).

    Args:
        x: [tokens, n] bf16 or fp32, n a multiple of 32.
        weight: [n].
        eps: config key `rms_norm_eps`.
        quantise: also return the FP8 pair.
    """
    hidden = rms_norm(x, weight, eps)
    return Normed(hidden, quantise_fp8(hidden) if quantise else None)
