"""FP8 linear layer in plain Triton: codes become bf16 in registers. Meaning: reference.py.

Knows nothing of what it projects.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.portable_product import pack, refuses_shape, summed, unsummed
from deepinfer.ops.triton_rows import sum_quantise

__all__ = ["linear_fp8", "pack", "refuses"]


def linear_fp8(x: Tensor | Quantised, weight: Fp8Weight) -> Tensor:
    """As the reference, for what `pack` returned.

    Args:
        x: [tokens, K] as a contiguous FP8 pair, or plain bf16 (it is then quantised).
        weight: [out, K].

    Returns:
        [tokens, out] bf16.

    Raises:
        ValueError: the step has too many tokens for 32-bit offsets.
    """
    pair = x if isinstance(x, Quantised) else sum_quantise(x.contiguous())
    return summed(unsummed(pair, weight))


def refuses(
    *, arch: str, quantised: bool, linear_shapes: Iterable[tuple[int, int]], **_facts: object
) -> str | None:
    """None if the kernel serves all matrices [out, K] of the model, else why not."""
    if why_not := refuses_arch(arch):
        return why_not
    if not quantised:
        return "takes FP8 weights and input only"
    return next((r for shape in linear_shapes if (r := refuses_shape(*shape))), None)
