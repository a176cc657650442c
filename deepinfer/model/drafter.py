"""The DSpark drafter: stages that propose a block of tokens from the network's features.

Knows nothing of verification. Source: `spec/model.md` 10.1; `spec/model-decisions.md` D49-D51.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.model.block import Flow, start
from deepinfer.model.network import Network
from deepinfer.model.state import State
from deepinfer.model.weights import BlockWeights
from deepinfer.ops.attention_inputs import window_records
from deepinfer.ops.batch import Batch, ring_places, write_ring
from deepinfer.ops.markov_draft import Choose, Drafts
from deepinfer.ops.rotation import Rotation, rotation


class Drafter:
    """Draft stages on top of a network; embedding and head are the network's.

    Raises:
        ValueError: the network has no draft weights.
    """

    def __init__(self, network: Network):
        draft, weights = network.arch.draft, network.weights.draft
        if draft is None or weights is None:
            raise ValueError("this checkpoint has no draft stages")
        self.network = network
        self.draft_arch = draft
        self.weights = weights
        self.block = network.block

    @torch.inference_mode()
    def seed(self, features: Tensor, batch: Batch, state: State) -> None:
        """Store the stages' keys of committed tokens.

        Args:
            features: [tokens, targets * hidden] of `Forward`.
            batch: the same rows.
            state: pools.

        Writes:
            the draft rings of every request in the batch.
        """
        main = self.network.ops.linear_fp8(features, self.weights.main_proj)
        normed = self.block.norm(main, self.weights.main_norm)
        by = rotation(batch.positions, self.network.window_freqs)
        places = ring_places(batch, state.drafts[0].shape[1])
        for stage, ring in zip(self.weights.stages, state.drafts, strict=True):
            kv = self.network.ops.linear_fp8(normed.input, stage.attention.wkv)
            records = window_records(
                kv,
                stage.attention.kv_norm,
                by,
                self.network.arch.rms_norm_eps,
                self.network.records.window,
            )
            write_ring(ring, places, records)

    @torch.inference_mode()
    def draft(
        self,
        newest: Tensor,
        anchors: Tensor,
        slots: Tensor,
        lower: Tensor,
        state: State,
        drawing: Callable[[Tensor], Choose] | None = None,
    ) -> Drafts:
        """Propose the tokens after the newest one.

        Args:
            newest: [requests] int64, the newest sampled token (position anchor + 1).
            anchors: [requests] int64, position of the last token whose features are stored.
            slots: [requests] int64, state slot of each request.
            lower: [requests] int64, first position with stored features (decoder start).
            state: pools; not changed.
            drawing: takes drafts from logits, as in `markov_draft`; None = the likeliest.

        Returns:
            `block_size` drafts a request, for positions anchor + 2 and on.
        """
        block = self.draft_arch.block_size
        ids = newest.new_full((len(newest), block), self.draft_arch.noise_token_id)
        ids[:, 0] = newest
        positions = anchors.unsqueeze(1) + 1 + torch.arange(block, device=anchors.device)
        by = rotation(positions.flatten(), self.network.window_freqs)
        flow = start(self.network.embed(ids.flatten()), self.network.arch.hc_mult)
        for stage, ring in zip(self.weights.stages, state.drafts, strict=True):
            flow = self._stage(flow, stage, ring, slots, anchors, lower, by)
        flow = self.block.settle(flow)
        collapsed = self.network.ops.mhc_collapse(
            flow.streams, flow.pre, self.weights.norm, self.network.arch.rms_norm_eps
        )
        base = self.network.logits(collapsed.normed).unflatten(0, (-1, block))
        hidden = collapsed.plain.unflatten(0, (-1, block))
        return self.network.ops.markov_draft(base, hidden, newest, self.weights.markov, drawing)

    def _stage(
        self,
        flow: Flow,
        stage: BlockWeights,
        ring: Tensor,
        slots: Tensor,
        anchors: Tensor,
        lower: Tensor,
        by: Rotation,
    ) -> Flow:
        arch, shape = self.network.arch, (len(anchors), self.draft_arch.block_size)
        boundary = self.block.enter(flow, stage.hyper_attn)
        low = self.block.low_rank_query(boundary, stage.attention)
        inputs = self.block.attention_inputs(low, boundary, stage.attention, by)
        o = self.network.ops.draft_attention(
            inputs.q.unflatten(0, shape),
            inputs.records.unflatten(0, shape),
            ring,
            slots,
            anchors,
            lower,
            stage.attention.sink,
            by,
            window=arch.sliding_window,
            scale=arch.softmax_scale,
            record=self.network.records.window,
        )
        flow = self.block.leave(boundary, self.block.output(o.flatten(0, 1), stage.attention))
        topk = self.draft_arch.num_experts_per_tok
        return self.block.feed_forward(flow, stage, topk)
