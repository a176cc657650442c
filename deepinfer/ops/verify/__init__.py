"""Which drafts a request keeps; see reference.py, by_ratio.py and by_block.py for the rules."""

from deepinfer.ops.registry import Op
from deepinfer.ops.verify.by_block import block
from deepinfer.ops.verify.by_ratio import allocate_draft_laws, ratio, ratio_bytes
from deepinfer.ops.verify.ending import cut_at_end
from deepinfer.ops.verify.reference import Verified
from deepinfer.ops.verify.reference import verify as _reference

verify = Op(_reference)

__all__ = [
    "Verified",
    "allocate_draft_laws",
    "block",
    "cut_at_end",
    "ratio",
    "ratio_bytes",
    "verify",
]
