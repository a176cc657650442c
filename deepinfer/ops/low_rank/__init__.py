"""Low-rank query and window key; see reference.py for their meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.low_rank import cpu, cpu_f32
from deepinfer.ops.low_rank.reference import LowRank, LowRankWeights
from deepinfer.ops.low_rank.reference import low_rank as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

low_rank = Op(_reference)
low_rank.add(
    Implementation(
        "cpu_f32",
        cpu_f32.low_rank,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
low_rank.add(
    Implementation(
        "cpu",
        cpu.low_rank,
        refuses=serves,
        pack=cpu.pack,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
low_rank.add(
    lazy(
        low_rank,
        "triton",
        needs="triton",
        run="deepinfer.ops.low_rank.triton:low_rank",
        refuses="deepinfer.ops.low_rank.triton:refuses",
        pack="deepinfer.ops.low_rank.triton:pack",
        order_class="sm90",
    )
)
low_rank.add(
    lazy(
        low_rank,
        "portable",
        needs="triton",
        run="deepinfer.ops.low_rank.portable:low_rank",
        refuses="deepinfer.ops.low_rank.portable:refuses",
        pack="deepinfer.ops.low_rank.portable:pack",
        order_class="portable",
    )
)

__all__ = ["LowRank", "LowRankWeights", "low_rank"]
