"""RMSNorm and FP8 quantisation on the CPU, in fewer passes. Bits equal the reference's."""

from torch import Tensor

from deepinfer.ops.cpu_codes import quantise as quantise_fp8
from deepinfer.ops.norm_quantise.reference import Normed
from deepinfer.ops.products import rms_norm


def norm_quantise(x: Tensor, weight: Tensor, *, eps: float, quantise: bool) -> Normed:
    """As the reference."""
    hidden = rms_norm(x, weight, eps)
    return Normed(hidden, quantise_fp8(hidden) if quantise else None)
