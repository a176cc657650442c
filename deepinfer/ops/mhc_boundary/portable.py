"""The step between two sub-layers for any GPU from SM90 on: the launches of few tokens, for any.

The third launch that Hopper has for many tokens copies tiles in a way of its own; the bits are the
same without. Knows nothing of attention or experts. Meaning: reference.py.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false

from __future__ import annotations

import sys

from torch import Tensor

from deepinfer.ops.mhc_boundary.plan import PLAN
from deepinfer.ops.mhc_boundary.reference import Boundary
from deepinfer.ops.mhc_boundary.triton import PackedHyper, launch, pack, refuses_sizes
from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.portable import refuses_arch

__all__ = ["mhc_boundary", "pack", "refuses"]

_FEW = PLAN._replace(few=sys.maxsize)


def mhc_boundary(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: PackedHyper,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
) -> Boundary:
    """As the reference, for bf16 streams and what `pack` returned.

    Raises:
        ValueError: streams or output are not bf16.
    """
    return launch(streams, pending, pre, weights, eps, hc_eps, iterations, quantise, _FEW)


def refuses(
    *, arch: str, hidden: int, streams: int, quantised: bool, **_facts: object
) -> str | None:
    """None if these kernels serve, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch) or refuses_sizes(hidden=hidden, streams=streams, quantised=quantised)
