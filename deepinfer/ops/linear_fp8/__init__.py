"""Quantised linear layer; see reference.py for its meaning."""

from importlib.util import find_spec
from typing import Any

from torch import Tensor

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.formats import Quantised
from deepinfer.ops.linear_fp8 import cpu
from deepinfer.ops.linear_fp8.reference import linear_fp8 as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op

linear_fp8 = Op(_reference)
linear_fp8.add(
    Implementation(
        "cpu",
        cpu.linear_fp8,
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
    from deepinfer.ops.linear_fp8 import triton

    return triton.refuses(**facts)


def _triton_pack(weights: Any) -> Any:
    from deepinfer.ops.linear_fp8 import triton

    return triton.pack(weights)


def _triton(x: Tensor | Quantised, weight: Any) -> Tensor:
    from deepinfer.ops.linear_fp8 import triton

    return triton.linear_fp8(x, weight)


linear_fp8.add(
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

__all__ = ["linear_fp8"]
