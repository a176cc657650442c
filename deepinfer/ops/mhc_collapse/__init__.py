"""Stream collapse and norm; see reference.py for its meaning."""

from deepinfer.ops.mhc_collapse.reference import Collapsed
from deepinfer.ops.mhc_collapse.reference import mhc_collapse as _reference
from deepinfer.ops.registry import Op

mhc_collapse = Op(_reference)

__all__ = ["Collapsed", "mhc_collapse"]
