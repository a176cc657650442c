"""The DSpark drafter: stages that propose a block of tokens from the network's features.

Knows nothing of verification. Source: `spec/model.md` 10.1; `spec/model-decisions.md` D49-D51.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.device import find_device
from deepinfer.model.block import Flow
from deepinfer.model.network import Network
from deepinfer.model.state import State
from deepinfer.model.weights import BlockWeights
from deepinfer.ops.batch import Batch, ring_places
from deepinfer.ops.draft_start import DraftStart, blocks
from deepinfer.ops.formats import Quantised
from deepinfer.ops.leading import leading_rows
from deepinfer.ops.low_rank import LowRank
from deepinfer.ops.markov_draft import Drafts, Draw
from deepinfer.ops.mhc_boundary import Boundary
from deepinfer.ops.norm_quantise import Normed
from deepinfer.ops.rotation import Rotation


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
        self._leading_rows = leading_rows.bind(arch=find_device(str(network.device)).arch)

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
        by = self.network.ops.angles(batch.positions, self.network.window_freqs)
        places = ring_places(batch, state.drafts[0].shape[1])
        stages = zip(self.weights.stages, self.weights.keys, state.drafts, strict=True)
        for stage, key, ring in stages:
            kv = self.network.ops.linear_fp8(normed.input, key)
            self.network.ops.write_records(ring, places, self._records(kv, stage, by))

    @torch.inference_mode()
    def draft(
        self,
        newest: Tensor,
        anchors: Tensor,
        slots: Tensor,
        lower: Tensor,
        state: State,
        drawing: Draw | None = None,
    ) -> Drafts:
        """Whole blocks of drafts after the newest tokens, with logits.

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
        block, noise = self.draft_arch.block_size, self.draft_arch.noise_token_id
        start = blocks(newest, anchors, slots, lower, block=block, noise=noise)
        return self.draft_from(start, state, drawing, count=block, keep=True)

    @torch.inference_mode()
    def draft_from(
        self, start: DraftStart, state: State, drawing: Draw | None, *, count: int, keep: bool
    ) -> Drafts:
        """Propose tokens that follow the newest ones.

        Args:
            start: of the blocks.
            state: pools; not changed.
            drawing: takes drafts from logits, as in `markov_draft`; None = the likeliest.
            count: drafts a request, at most `block_size`; what they are does not depend on it: the
                last stage leaves the other rows out, all but their keys.
            keep: return the logits.

        Returns:
            Drafts for positions anchor + 2 and on.
        """
        block = self.draft_arch.block_size
        by = self.network.ops.angles(start.positions, self.network.window_freqs)
        flow = self.network.begin(start.ids)
        last = len(self.weights.stages) - 1
        for place, (stage, ring) in enumerate(zip(self.weights.stages, state.drafts, strict=True)):
            flow = self._stage(flow, stage, ring, start, by, count if place == last else block)
        flow = self.block.settle(flow)
        collapsed = self.network.ops.mhc_collapse(
            flow.streams, flow.pre, self.weights.norm, self.network.arch.rms_norm_eps
        )
        base = self.network.logits(collapsed.normed).unflatten(0, (-1, count))
        hidden = collapsed.plain.unflatten(0, (-1, count))
        return self.network.ops.markov_draft(
            base, hidden, start.newest, self.weights.markov, drawing, keep
        )

    def _stage(
        self,
        flow: Flow,
        stage: BlockWeights,
        ring: Tensor,
        start: DraftStart,
        by: Rotation,
        count: int,
    ) -> Flow:
        """One stage; the flow comes out with the first `count` rows of each block."""
        arch, block = self.network.arch, self.draft_arch.block_size
        boundary = self.block.enter(flow, stage.hyper_attn)
        low = self.block.low_rank(boundary, stage.attention)
        records = None
        if count < block:  # only the keys of the other rows are wanted
            records = self._records(low.kv, stage, by)
            boundary, low, by = self._first(boundary, low, by, count)
        inputs = self.block.attention_inputs(low, stage.attention, by)
        records = inputs.records if records is None else records
        o = self.network.ops.draft_attention(
            inputs.q.unflatten(0, (len(start.newest), count)),
            records.unflatten(0, (len(start.newest), block)),
            ring,
            start.slots,
            start.anchors,
            start.lower,
            stage.attention.sink,
            by,
            window=arch.sliding_window,
            scale=arch.softmax_scale,
            record=self.network.records.window,
        )
        output = self.block.output(o.flatten(0, 1), stage.attention)
        flow = self.block.leave(boundary, output)
        return self.block.feed_forward(flow, stage, self.draft_arch.num_experts_per_tok)

    def _first(
        self, boundary: Boundary, low: LowRank, by: Rotation, count: int
    ) -> tuple[Boundary, LowRank, Rotation]:
        """The first `count` rows of each block, but for the sub-layer's input."""
        pair = low.query.quantised
        pairs = () if pair is None else (pair.codes, pair.scale)
        streams, pre, post, comb, cos, sin, kv, hidden, *pairs = self._leading_rows(
            (*boundary[:4], by.cos, by.sin, low.kv, low.query.hidden, *pairs),
            block=self.draft_arch.block_size,
            count=count,
        )
        boundary = boundary._replace(streams=streams, pre=pre, post=post, comb=comb)
        low = LowRank(Normed(hidden, Quantised(*pairs) if pairs else None), kv)
        return boundary, low, Rotation(cos, sin)

    def _records(self, kv: Tensor, stage: BlockWeights, by: Rotation) -> Tensor:
        """Window records [tokens, bytes] of raw keys [tokens, head_dim], without queries."""
        made = self.network.ops.attention_inputs(
            kv[:, :0],
            kv,
            stage.attention.kv_norm,
            by,
            heads=0,
            eps=self.network.arch.rms_norm_eps,
            record=self.network.records.window,
        )
        return made.records
