"""RMSNorm and FP8 quantisation in one Triton launch, one program a row."""

from __future__ import annotations

from torch import Tensor

from deepinfer.ops import triton_rows
from deepinfer.ops.norm_quantise.reference import Normed
from deepinfer.ops.portable import refuses_arch


def pack(weights: Tensor) -> Tensor:
    """The norm weight as it is."""
    return weights


def norm_quantise(x: Tensor, weight: Tensor, *, eps: float, quantise: bool) -> Normed:
    """As the reference, for bf16 `x`; the sum of squares runs in fp32."""
    return Normed(*triton_rows.norm_quantise(x.contiguous(), weight, eps, quantise=quantise))


def refuses(*, arch: str, quantised: bool, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    return None if quantised else "takes bf16 rows only"
