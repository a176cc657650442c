"""The text network: forty layers over a batch of tokens, reading and writing request state.

Knows nothing of requests, plans or sampling. Source: `spec/model.md` 5, 6, 9, 12.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Arch, Layer
from deepinfer.device import Branch
from deepinfer.model.block import Block, Flow, Observer
from deepinfer.model.engram_map import EngramMap
from deepinfer.model.numerics import Numerics
from deepinfer.model.operations import Operations
from deepinfer.model.state import State
from deepinfer.model.weights import EngramWeights, IndexerWeights, LayerWeights, ModelWeights
from deepinfer.ops.batch import Batch, RingPlaces, ring_places, trailing
from deepinfer.ops.engram_rows import EngramHash
from deepinfer.ops.index_select import CandidateRule, Selection
from deepinfer.ops.mhc_boundary import Boundary
from deepinfer.ops.mhc_collapse import Collapsed
from deepinfer.ops.norm_quantise import Normed
from deepinfer.ops.registry import Bound
from deepinfer.ops.rotation import Rotation, layer_frequencies


class Tail(NamedTuple):
    """The rows that run the decoder layers when prompt rows below `lower` stop at the boundary.

    lower [tokens] int64 is each row's decoder start. keep [kept] int64 (ascending row numbers) and
    slices, the bounds of the kept rows, remove the others physically; keep None leaves them in
    place, masked by `lower` (same numbers, more work).
    """

    lower: Tensor
    keep: Tensor | None
    slices: tuple[tuple[int, int], ...]


class Forward(NamedTuple):
    """Result of a forward pass over the kept rows.

    hidden [kept, hidden]: normalised input of the head. features [kept, targets * hidden]: input
    of the drafter, None without draft layers. batch: the kept rows. windows [n, layers, window,
    record bytes]: window records up to the tokens asked for, of the layers before the boundary
    layer; None if none were.
    """

    hidden: Tensor
    features: Tensor | None
    batch: Batch
    windows: Tensor | None = None


@dataclass
class Pass:
    """What layers hand down during one forward pass."""

    batch: Batch
    state: State
    history: Tensor
    tail: Tail | None = None
    observer: Observer | None = None
    save: Tensor | None = None
    windows: list[Tensor] = field(default_factory=list[Tensor])
    selections: dict[int, Selection] = field(default_factory=dict)
    features: list[Tensor] = field(default_factory=list)
    _angles: dict[bool, Rotation] = field(default_factory=dict)
    _ring_places: RingPlaces | None = None

    def observe(self, name: str, layer: int, value: Tensor) -> None:
        """Show a value to the observer, if there is one."""
        if self.observer is not None:
            self.observer(name, layer, value)

    def watch(self, layer: int) -> Callable[[str, Tensor], None] | None:
        """What shows values of a layer to the observer; None if nobody looks."""
        if self.observer is None:
            return None
        return lambda name, value: self.observe(name, layer, value)

    def angles(self, make: Bound, freqs: Tensor, *, compressed: bool) -> Rotation:
        """Angles of the positions, computed once for all layers with these frequencies."""
        if compressed not in self._angles:
            self._angles[compressed] = make(self.batch.positions, freqs)
        return self._angles[compressed]

    def ring_places(self, ring: Tensor) -> RingPlaces:
        """Where window records go; the rings of all layers have one length."""
        if self._ring_places is None:
            self._ring_places = ring_places(self.batch, ring.shape[1])
        return self._ring_places

    def cut(self, keep: Tensor, slices: tuple[tuple[int, int], ...]) -> None:
        """Drop all rows but `keep`."""
        self._angles.clear()
        self._ring_places = None
        self.batch = self.batch.kept(keep, slices)
        self.history = self.history[keep]
        self.selections = {k: s.rows(keep) for k, s in self.selections.items()}
        self.features = [f[keep] for f in self.features]


class Network:
    """DeepSeek-V4.1 text network with bound operations and loaded weights.

    Args:
        arch: the architecture.
        numerics: numeric mode; must be the one the weights were loaded with.
        ops: bound operations; must be the ones the weights were packed for.
        weights: loaded weights; their device is the network's device.
        engram_map: hash constants; needed iff the architecture has Engram layers.
    """

    def __init__(
        self,
        arch: Arch,
        numerics: Numerics,
        ops: Operations,
        weights: ModelWeights,
        engram_map: EngramMap | None,
    ):
        self.arch = arch
        self.numerics = numerics
        self.ops = ops
        self.weights = weights
        self.device = weights.embed.device
        self.block = Block(arch, ops, numerics)
        self.records = self.block.records
        window, compressed = layer_frequencies(arch)
        self.window_freqs = window.to(self.device)
        self.compressed_freqs = compressed.to(self.device)
        self._beside = Branch()
        self.rule = CandidateRule(arch.candidate_topk_blocks, arch.candidate_block_size)
        self.hashes = () if engram_map is None else _hashes(engram_map, self.device)

    def graph_obstacles(self) -> list[str]:
        """Why a decoding step cannot be captured in a graph, one sentence each; [] if it can."""
        bound = (getattr(self.ops, item.name) for item in fields(self.ops))
        found = [
            f"{op.op}: {op.implementation.name} is not graph-safe"
            for op in bound
            if not op.implementation.graph_safe
        ]
        tables = [w.engram.table for w in self.weights.layers if w.engram is not None]
        if not all(table.graph_safe for table in tables):
            found.append("the Engram tables are on disk")
        return found

    def begin(self, ids: Tensor) -> Flow:
        """The flow of ids [tokens] before the first block."""
        streams, pre = self.ops.embed_streams(
            ids, self.weights.embed, streams=self.arch.hc_mult, dtype=self.numerics.activation
        )
        return Flow(streams, None, pre)

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [rows, vocab] of normalised hidden rows."""
        return self.ops.head(hidden, self.weights.head)

    @torch.inference_mode()
    def forward(
        self,
        history: Tensor,
        batch: Batch,
        state: State,
        tail: Tail | None = None,
        observer: Observer | None = None,
        save: Tensor | None = None,
    ) -> Forward:
        """Run all layers over a batch.

        Args:
            history: [tokens, n] int64 token ids, newest (the token itself) first; -1 before the
                start. n is `engram.max_ngram_size`, or 1 without Engram.
            batch: the tokens; their pages must be in the page table.
            state: pools.
            tail: bounded decoder replay; None runs every row through every layer.
            observer: called as observer(name, layer, value) with intermediate values.
            save: [n] int64, tokens up to which `Forward.windows` is wanted, or None.

        Writes:
            the state of every request in the batch.
        """
        step = Pass(batch, state, history, tail, observer, save)
        flow = self.begin(history[:, 0])
        for layer in self.arch.layers:
            flow = self.layer(layer, flow, step)
            if not len(flow.streams):  # a chunk that lies wholly below the decoder start
                hidden, features = flow.streams[:, 0], self._no_features(flow)
                return Forward(hidden, features, step.batch, _windows(step))
        collapsed = self.collapse(flow)
        features = torch.cat(step.features, -1) if step.features else None
        return Forward(collapsed.normed, features, step.batch, _windows(step))

    def _no_features(self, flow: Flow) -> Tensor | None:
        if self.arch.draft is None:
            return None
        width = len(self.arch.draft.target_layer_ids) * self.arch.hidden_size
        return flow.streams.new_empty(0, width)

    def collapse(self, flow: Flow) -> Collapsed:
        """The final collapse and norm."""
        flow = self.block.settle(flow)
        return self.ops.mhc_collapse(
            flow.streams, flow.pre, self.weights.norm, self.arch.rms_norm_eps
        )

    def layer(self, layer: Layer, flow: Flow, step: Pass) -> Flow:
        """One backbone layer over the rows of `step`; the flow may come out with fewer rows."""
        weights = self.weights.layers[layer.index]
        if weights.engram is not None:
            flow = self._engram(layer, self.block.settle(flow), weights.engram, step)
        boundary = self.block.enter(flow, weights.block.hyper_attn)
        if self.arch.draft is not None and layer.index in self.arch.draft.target_layer_ids:
            step.features.append(self.ops.stream_mean(boundary.streams))
        boundary = self._own(layer, boundary, weights, step)
        if not len(boundary.hidden):
            return Flow(boundary.streams, None, boundary.pre)
        output = self._attend(layer, boundary, weights, step)

        observe = step.watch(layer.index)
        if observe is not None:
            observe("attn_coefficients", torch.cat((boundary.pre, boundary.post), -1))
            observe("attn_comb", boundary.comb)
            observe("attn_in", boundary.hidden)
            observe("attn_out", output)
        flow = self.block.leave(boundary, output)
        flow = self.block.feed_forward(flow, weights.block, self.arch.num_experts_per_tok, observe)
        if observe is not None:
            flow = self.block.settle(flow)
            observe("resid", flow.streams)
            observe("pre_mix", flow.pre)
        return flow

    def _engram(self, layer: Layer, flow: Flow, weights: EngramWeights, step: Pass) -> Flow:
        assert layer.engram is not None
        rows = self.ops.engram_rows(step.history, self.hashes[layer.engram])
        codes, scale = weights.table.fetch(rows)
        recalled = self.ops.engram_values(codes, scale, dtype=self.numerics.activation)
        kv = self.ops.linear_fp8(recalled, weights.wkv)
        live = step.history[:, 0] >= 0
        gated = self.ops.engram_gate(
            flow.streams,
            kv,
            weights.q_weight,
            weights.k_weight,
            live,
            eps=self.arch.rms_norm_eps,
        )
        step.observe("engram_rows", layer.index, rows)
        step.observe("engram_gate", layer.index, gated.gate)
        step.observe("engram_out", layer.index, gated.streams)
        return Flow(gated.streams, None, flow.pre)

    def _own(self, layer: Layer, boundary: Boundary, weights: LayerWeights, step: Pass) -> Boundary:
        """Store what this layer owns; at the boundary layer, let the other rows go (D52)."""
        if weights.compressor is not None:
            self.ops.compress(
                boundary.hidden,
                weights.compressor,
                step.batch,
                step.state.pairs.get(layer.index),
                step.state.owners[layer.index],
                self.compressed_freqs,
                eps=self.arch.rms_norm_eps,
                records=self.records,
            )
        if step.tail is None or layer.index != self.arch.boundary_layer:
            return boundary
        step.batch = step.batch.with_lower(step.tail.lower)
        if step.tail.keep is None:
            return boundary
        step.cut(step.tail.keep, step.tail.slices)
        return boundary.rows(step.tail.keep)

    def _attend(
        self, layer: Layer, boundary: Boundary, weights: LayerWeights, step: Pass
    ) -> Tensor:
        block, batch, attention = self.block, step.batch, weights.block.attention
        compressed = layer.ratio > 0
        freqs = self.compressed_freqs if compressed else self.window_freqs
        by = step.angles(self.ops.angles, freqs, compressed=compressed)
        low = block.low_rank(boundary, attention)
        selected = None
        if (indexer := weights.indexer) is not None:
            selected = self._beside.start(
                self.device, lambda: self._select(layer, low.query, boundary, indexer, by, step)
            )
        inputs = block.attention_inputs(low, attention, by)
        if selected is not None:
            selected()
        ids = pages = None
        if layer.index_source is not None and layer.kv_source is not None:
            ids = step.selections[layer.index_source].ids
            pages = step.state.owners[layer.kv_source]
        ring = step.state.windows[layer.index]
        o = self.ops.sparse_attention(
            inputs.q,
            inputs.records,
            ring,
            ids,
            pages,
            attention.sink,
            batch,
            by,
            window=self.arch.sliding_window,
            scale=self.arch.softmax_scale,
            layout=self.records,
        )
        boundary_layer = self.arch.boundary_layer
        if step.save is not None and boundary_layer is not None and layer.index < boundary_layer:
            window = self.arch.sliding_window
            step.windows.append(trailing(batch, ring, inputs.records, step.save, window))
        self.ops.write_records(ring, step.ring_places(ring), inputs.records)
        step.observe("attn_q", layer.index, inputs.q)
        step.observe("attn_o", layer.index, o)
        step.observe("window_records", layer.index, inputs.records)
        return block.output(o, attention)

    def _select(
        self,
        layer: Layer,
        low: Normed,
        boundary: Boundary,
        weights: IndexerWeights,
        by: Rotation,
        step: Pass,
    ) -> None:
        assert layer.kv_source is not None
        queries = self.ops.index_inputs(
            self.ops.linear_fp8(low.input, weights.wq_b),
            boundary.hidden,
            weights.weights_proj,
            by,
            scale=self.arch.index_scale,
            record=self.records.index_key,
        )
        source = self.arch.candidate_source_layer_id
        blocks = None
        if layer.mode == "reindex" and source in step.selections:
            blocks = step.selections[source].blocks
        chosen = self.ops.index_select(
            queries,
            step.batch,
            step.state.owners[layer.kv_source],
            blocks,
            topk=self.arch.index_topk,
            rule=self.rule,
            publish=layer.index == source,
            record=self.records.index_key,
        )
        step.selections[layer.index] = chosen
        step.observe("index_q", layer.index, queries.records)
        step.observe("index_w", layer.index, queries.weights)
        step.observe("select", layer.index, chosen.ids)
        if chosen.blocks is not None:
            step.observe("candidates", layer.index, chosen.blocks)


def _windows(step: Pass) -> Tensor | None:
    return torch.stack(step.windows, dim=1) if step.windows else None


def _hashes(engram_map: EngramMap, device: torch.device) -> tuple[EngramHash, ...]:
    """Each Engram layer's constants as tensors."""
    classes = torch.from_numpy(engram_map.classes).to(device, torch.int64)
    return tuple(
        EngramHash(
            classes=classes,
            multipliers=torch.from_numpy(engram_map.multipliers[i]).to(device),
            primes=torch.from_numpy(engram_map.primes[i]).flatten().to(device),
            offsets=torch.from_numpy(engram_map.offsets[i]).to(device),
            pad=int(engram_map.pad_class),
        )
        for i in range(len(engram_map.primes))
    )
