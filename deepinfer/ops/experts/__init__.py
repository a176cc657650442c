"""Routed experts; see reference.py for its meaning."""

from importlib.util import find_spec
from typing import Any

from torch import Tensor

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.experts import cpu
from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.experts.reference import experts as _reference
from deepinfer.ops.formats import Quantised
from deepinfer.ops.registry import REFERENCE, Implementation, Op

experts = Op(_reference)
experts.add(
    Implementation(
        "cpu",
        cpu.experts,
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
    from deepinfer.ops.experts import triton

    return triton.refuses(**facts)


def _triton_pack(weights: Any) -> Any:
    from deepinfer.ops.experts import packing

    return packing.pack(weights)


def _triton(
    x: Tensor | Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: Any,
    *,
    limit: float,
) -> Tensor:
    from deepinfer.ops.experts import triton

    return triton.experts(x, topk_idx, topk_weights, weights, limit=limit)


experts.add(
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

__all__ = ["ExpertWeights", "experts"]
