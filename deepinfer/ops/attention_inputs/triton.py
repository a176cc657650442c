"""Rotated queries and window records in one Triton launch."""

from __future__ import annotations

from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops import triton_rows
from deepinfer.ops.attention_inputs.reference import AttentionInputs
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.rotation import Rotation


def attention_inputs(
    q: Tensor, kv: Tensor, kv_norm: Tensor, by: Rotation, *, heads: int, eps: float, record: Record
) -> AttentionInputs:
    """As the reference, for bf16 projections and FP8 records.

    Raises:
        ValueError: the record is another format.
    """
    if record.format != "fp8_ue8m0_32":
        raise ValueError(f"attention_inputs: writes FP8 records, not {record.format}")
    return AttentionInputs(
        *triton_rows.attention_inputs(
            q.contiguous(), kv.contiguous(), kv_norm, by.cos, by.sin, heads, eps
        )
    )


def pack(weights: Tensor) -> Tensor:
    """The norm weight as it is."""
    return weights


def refuses(
    *, arch: str, quantised: bool, heads: int, head_dim: int, **_facts: object
) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    if not quantised:
        return "takes bf16 projections only"
    if heads % 4 or head_dim & (head_dim - 1) or head_dim < 64:
        return f"{heads} heads of {head_dim}; wants a multiple of 4 of a power of two"
    return None
