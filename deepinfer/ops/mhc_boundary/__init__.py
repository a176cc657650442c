"""The step between two sub-layers; see reference.py for its meaning."""

from importlib.util import find_spec
from typing import Any

from torch import Tensor

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.mhc_boundary import cpu
from deepinfer.ops.mhc_boundary.reference import (
    Boundary,
    Coefficients,
    HyperWeights,
    coefficients,
    split_coefficients,
)
from deepinfer.ops.mhc_boundary.reference import mhc_boundary as _reference
from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.registry import REFERENCE, Implementation, Op

mhc_boundary = Op(_reference)
mhc_boundary.add(
    Implementation(
        "cpu",
        cpu.mhc_boundary,
        refuses=serves,
        pack=cpu.pack,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)


# Triton is optional and only there with a GPU build of torch: its module is imported on use.


def _triton_refuses(**facts: Any) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    from deepinfer.ops.mhc_boundary import triton

    return triton.refuses(**facts)


def _triton_pack(weights: Any) -> Any:
    from deepinfer.ops.mhc_boundary import triton

    return triton.pack(weights)


def _triton(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: Any,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
) -> Boundary:
    from deepinfer.ops.mhc_boundary import triton

    return triton.mhc_boundary(
        streams,
        pending,
        pre,
        weights,
        eps=eps,
        hc_eps=hc_eps,
        iterations=iterations,
        quantise=quantise,
    )


mhc_boundary.add(
    Implementation(
        "triton",
        _triton,
        refuses=_triton_refuses,
        pack=_triton_pack,
        batch_invariant=True,
        graph_safe=True,
        order_class="sm90",
    )
)

__all__ = [
    "Boundary",
    "Coefficients",
    "HyperWeights",
    "coefficients",
    "mhc_boundary",
    "split_coefficients",
]
