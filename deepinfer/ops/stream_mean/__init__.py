"""The mean of the residual streams; see reference.py for its meaning."""

from deepinfer.ops.registry import Op, lazy
from deepinfer.ops.stream_mean.reference import stream_mean as _reference

stream_mean = Op(_reference)
stream_mean.add(
    lazy(
        stream_mean,
        "triton",
        needs="triton",
        run="deepinfer.ops.stream_mean.triton:stream_mean",
        refuses="deepinfer.ops.stream_mean.triton:refuses",
        pack="deepinfer.ops.stream_mean.triton:pack",
        order_class="triton",
    )
)
stream_mean.add(
    lazy(
        stream_mean,
        "tilelang",
        needs="tilelang",
        run="deepinfer.ops.stream_mean.tilelang:stream_mean",
        refuses="deepinfer.ops.tilelang_refusals:streams",
        pack="deepinfer.ops.stream_mean.tilelang:pack",
        order_class="tilelang",
    )
)

__all__ = ["stream_mean"]
