"""Residual-stream update; see reference.py for its meaning."""

from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.mhc_update.reference import mhc_update as _reference
from deepinfer.ops.registry import Op

mhc_update = Op(_reference)

__all__ = ["Pending", "mhc_update"]
