"""One block of the network: attention sub-layer and FFN sub-layer between mHC boundaries.

Backbone layers and draft stages share everything here except what their attention reads. Knows
nothing of the order of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Arch, Records
from deepinfer.device import Branch
from deepinfer.model.numerics import Numerics
from deepinfer.model.operations import Operations
from deepinfer.model.weights import AttentionWeights, BlockWeights
from deepinfer.ops.attention_inputs import AttentionInputs
from deepinfer.ops.formats import Quantised
from deepinfer.ops.low_rank import LowRank
from deepinfer.ops.mhc_boundary import Boundary, HyperWeights
from deepinfer.ops.mhc_update import Pending
from deepinfer.ops.norm_quantise import Normed
from deepinfer.ops.rotation import Rotation

Observer = Callable[[str, int, Tensor], None]
"""Called with (name, layer, value) at the points that a trace records; see `Network.forward`."""


class Flow(NamedTuple):
    """What passes from one sub-layer to the next.

    streams [tokens, m, hidden]; `pending` the last sub-layer's output, not yet in the streams;
    pre [tokens, m] fp32 collapses the streams for the next sub-layer.
    """

    streams: Tensor
    pending: Pending | None
    pre: Tensor


class Block:
    """The shared halves of a layer, bound to operations."""

    def __init__(self, arch: Arch, ops: Operations, numerics: Numerics):
        self.arch = arch
        self.ops = ops
        self.quantised = numerics.quantised
        self.records: Records = numerics.records(arch)
        self._beside = Branch()

    def settle(self, flow: Flow) -> Flow:
        """Add the pending output to the streams."""
        if flow.pending is None:
            return flow
        return Flow(self.ops.mhc_update(flow.streams, flow.pending), None, flow.pre)

    def enter(self, flow: Flow, weights: HyperWeights) -> Boundary:
        """Cross the boundary in front of a sub-layer."""
        arch = self.arch
        return self.ops.mhc_boundary(
            flow.streams,
            flow.pending,
            flow.pre,
            weights,
            eps=arch.rms_norm_eps,
            hc_eps=arch.hc_eps,
            iterations=arch.hc_sinkhorn_iters,
            quantise=self.quantised,
        )

    def leave(self, boundary: Boundary, output: Tensor) -> Flow:
        """Hand a sub-layer's output on."""
        pending = Pending(output, boundary.post, boundary.comb)
        return Flow(boundary.streams, pending, boundary.pre)

    def low_rank(self, boundary: Boundary, weights: AttentionWeights) -> LowRank:
        """The low-rank query that both the attention and the indexer project; the raw key."""
        return self.ops.low_rank(
            boundary.input,
            weights.low_rank,
            eps=self.arch.rms_norm_eps,
            quantise=self.quantised,
        )

    def norm(self, x: Tensor, weight: Tensor) -> Normed:
        """RMSNorm of [tokens, n], quantised once for all that read it."""
        return self.ops.norm_quantise(
            x, weight, eps=self.arch.rms_norm_eps, quantise=self.quantised
        )

    def attention_inputs(
        self, low: LowRank, weights: AttentionWeights, by: Rotation
    ) -> AttentionInputs:
        """Rotated queries and this step's window records."""
        return self.ops.attention_inputs(
            self.ops.linear_fp8(low.query.input, weights.wq_b),
            low.kv,
            weights.kv_norm,
            by,
            heads=self.arch.num_attention_heads,
            eps=self.arch.rms_norm_eps,
            record=self.records.window,
        )

    def output(self, o: Tensor, weights: AttentionWeights) -> Tensor:
        """Project attention outputs [tokens, heads, head_dim] to [tokens, hidden]."""
        return self.ops.grouped_output(o, weights.output, groups=self.arch.o_groups)

    def feed_forward(
        self,
        flow: Flow,
        weights: BlockWeights,
        topk: int,
        observe: Callable[[str, Tensor], None] | None = None,
    ) -> Flow:
        """The whole FFN sub-layer: routed experts plus the shared one, rounded once."""
        boundary = self.enter(flow, weights.hyper_ffn)
        ffn = weights.ffn
        x: Tensor | Quantised = boundary.input
        limit = self.arch.swiglu_limit
        shared = self._beside.start(
            boundary.hidden.device, lambda: self.ops.shared_expert(x, ffn.shared, limit=limit)
        )
        routing = self.ops.route(
            boundary.hidden, ffn.gate, ffn.bias, topk=topk, scaling=self.arch.routed_scaling_factor
        )
        routed = self.ops.experts(
            x, routing.topk_idx, routing.topk_weights, ffn.routed, limit=limit
        )
        output = self.ops.add_outputs(routed, shared(), dtype=boundary.hidden.dtype)
        if observe is not None:
            observe("ffn_coefficients", torch.cat((boundary.pre, boundary.post), -1))
            observe("ffn_comb", boundary.comb)
            observe("ffn_in", boundary.hidden)
            observe("router_ids", routing.topk_idx)
            observe("router_weights", routing.topk_weights)
            observe("ffn_out", output)
        return self.leave(boundary, output)
