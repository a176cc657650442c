"""The network over packed rows of documents, differentiable: backbone layers and what they share.

It does not know losses or optimisers. Source: `spec/model.md` 5, 6, 9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.arch import Arch, Layer
from deepinfer.model.engram_map import EngramMap
from deepinfer.nano.train import attention, layers
from deepinfer.nano.train.attention import KeySet, Pieces
from deepinfer.nano.train.layers import (
    AttentionWeights,
    CompressorWeights,
    Crossed,
    EngramWeights,
    FeedForwardWeights,
    HyperWeights,
    Pending,
)
from deepinfer.nano.train.masters import Weights
from deepinfer.nano.train.rows import Rows, near_keys
from deepinfer.nano.train.selection import index_loss, select
from deepinfer.ops.engram_rows import EngramHash
from deepinfer.ops.engram_rows.reference import engram_rows
from deepinfer.ops.rotation import Rotation

Fuse = Callable[[Callable[..., Any]], Callable[..., Any]]


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The fuse that compiles nothing."""
    return function


class Parts:
    """The functions of `layers`, `attention` and `selection`, compiled by `fuse`."""

    def __init__(self, arch: Arch, fuse: Fuse):
        self.cross = partial(fuse(layers.cross), arch=arch)
        self.leave = partial(fuse(layers.leave), eps=arch.rms_norm_eps)
        self.inputs = partial(fuse(layers.attention_inputs), arch=arch)
        self.window_key = partial(fuse(layers.window_key), arch=arch)
        self.project_output = partial(fuse(layers.project_output), arch=arch)
        self.feed_forward = partial(fuse(layers.feed_forward), arch=arch)
        self.compress = partial(fuse(layers.compress), arch=arch)
        self.index_queries = partial(fuse(layers.index_queries), arch=arch)
        self.index_sum = fuse(layers.index_sum)
        self.index_loss = fuse(index_loss)
        self.recall = partial(fuse(layers.recall), eps=arch.rms_norm_eps)
        self.attention = Pieces(*(fuse(piece) for piece in attention.PLAIN))


class Flow(NamedTuple):
    """Between sub-layers: streams without the last output, that output, and the pre for the next
    collapse."""

    streams: Tensor
    pending: Pending
    pre: Tensor


@dataclass
class Trace:
    """What a forward pass gives.

    hidden [tokens, d] normalised input of the head; features [tokens, targets * d] without
    gradient; load: share of the tokens that each expert of a block got, by block prefix;
    index_loss: distillation of the indexers, a number.
    """

    hidden: Tensor
    features: Tensor
    load: dict[str, Tensor]
    index_loss: Tensor


@dataclass
class _Pass:
    rows: Rows
    weights: Weights
    sparse: bool
    streams_mean: list[Tensor] = field(default_factory=list[Tensor])
    load: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    latents: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    keys: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    scores: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    seen: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    candidates: Tensor | None = None
    mass: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])


class Network:
    """The text network for training.

    Args:
        arch: the architecture.
        engram_map: hash constants; needed iff the architecture has Engram layers.
        device: where tensors are.
        fuse: compiles the parts.
    """

    def __init__(
        self,
        arch: Arch,
        engram_map: EngramMap | None,
        device: torch.device,
        fuse: Fuse = plain,
    ):
        self.arch = arch
        self.parts = Parts(arch, fuse)
        self.hashes = () if engram_map is None else _hashes(engram_map, device)

    def forward(self, rows: Rows, weights: Weights, *, sparse: bool) -> Trace:
        """Run all layers.

        Args:
            rows: the batch.
            weights: see `masters.working`.
            sparse: attend only to entries that the indexers select; else to all visible ones.
        """
        step = _Pass(rows, weights, sparse)
        embedded = functional.embedding(rows.ids.flatten(), weights["embed.weight"])
        flow = self.start(embedded)
        for layer in self.arch.layers:
            flow = self._layer(layer, flow, step)
        _, hidden = self.parts.leave(*flow, weights["norm.weight"])
        features = torch.cat(step.streams_mean, -1) if step.streams_mean else hidden[:, :0]
        return Trace(hidden, features, step.load, self._index_loss(step))

    def start(self, embedded: Tensor) -> Flow:
        """Equal streams; the first is collapsed (D22)."""
        pre = torch.zeros(len(embedded), self.arch.hc_mult, device=embedded.device)
        pre[:, 0] = 1.0
        streams = embedded.unsqueeze(1).repeat(1, self.arch.hc_mult, 1)
        return Flow(_learning(streams), _nothing(streams), _learning(pre))

    def enter(self, flow: Flow, prefix: str, side: str, weights: Weights) -> Crossed:
        """Cross the boundary in front of a sub-layer ("attn" or "ffn")."""
        hyper = HyperWeights(
            weights[f"{prefix}hc_{side}_fn"],
            weights[f"{prefix}hc_{side}_base"],
            weights[f"{prefix}hc_{side}_scale"],
            weights[f"{prefix}{side}_norm.weight"],
        )
        return Crossed(*self.parts.cross(*flow, hyper))

    def feed_forward(
        self, flow: Flow, prefix: str, topk: int, weights: Weights
    ) -> tuple[Flow, Tensor]:
        """The FFN sub-layer, and the load of its experts."""
        crossed = self.enter(flow, prefix, "ffn", weights)
        ffn = f"{prefix}ffn."
        tensors = FeedForwardWeights(
            gate=weights[f"{ffn}gate.weight"],
            bias=weights[f"{ffn}gate.bias"],
            w13=weights[f"{ffn}experts.w13"],
            w2=weights[f"{ffn}experts.w2"],
            shared13=weights[f"{ffn}shared_experts.w13"],
            shared2=weights[f"{ffn}shared_experts.w2"],
        )
        output, load = self.parts.feed_forward(crossed.hidden, crossed.input, tensors, topk)
        return self.leave(crossed, output), load

    def leave(self, crossed: Crossed, output: Tensor) -> Flow:
        """Hand a sub-layer's output on."""
        return Flow(crossed.streams, Pending(output, crossed.post, crossed.comb), crossed.pre)

    def _layer(self, layer: Layer, flow: Flow, step: _Pass) -> Flow:
        prefix, weights = f"layers.{layer.index}.", step.weights
        if layer.engram is not None:
            streams = self._recall(layer, flow, step)
            flow = Flow(streams, _nothing(streams), flow.pre)
        crossed = self.enter(flow, prefix, "attn", weights)
        draft = self.arch.draft
        if draft is not None and layer.index in draft.target_layer_ids:
            mean = crossed.streams.detach().float().mean(1)
            step.streams_mean.append(mean.to(crossed.hidden.dtype))
        output = self._attend(layer, crossed, step)
        flow, load = self.feed_forward(
            self.leave(crossed, output), prefix, self.arch.num_experts_per_tok, weights
        )
        step.load[prefix] = load
        return flow

    def _recall(self, layer: Layer, flow: Flow, step: _Pass) -> Tensor:
        assert layer.engram is not None
        prefix = f"layers.{layer.index}.engram."
        found = engram_rows(step.rows.history, self.hashes[layer.engram])
        recalled = functional.embedding(found, step.weights[f"{prefix}embed.weight"])
        tensors = EngramWeights(
            step.weights[f"{prefix}wkv.weight"],
            step.weights[f"{prefix}q_weight"],
            step.weights[f"{prefix}k_weight"],
        )
        return self.parts.recall(flow.streams, flow.pending, recalled, tensors)

    def _attend(self, layer: Layer, crossed: Crossed, step: _Pass) -> Tensor:
        rows, weights, parts = step.rows, step.weights, self.parts
        prefix = f"layers.{layer.index}.attn."
        by = rows.compressed if layer.ratio else rows.window
        low, q, key = parts.inputs(crossed.input, attention_weights(prefix, weights), by)
        boundary = self.arch.boundary_layer
        decoder = boundary is not None and layer.index >= boundary
        window = self.arch.sliding_window
        near = near_keys(key.view(*rows.shape, -1), window)
        sets = [KeySet(near, rows.near_decoder if decoder else rows.near)]
        if layer.ratio:
            sets.append(self._far(layer, low, crossed.hidden, by, step))
        out, mass = attention.attend(
            q,
            tuple(sets),
            weights[f"{prefix}attn_sink"],
            self.arch.softmax_scale,
            mass_of=1 if layer.ratio else None,
            pieces=parts.attention,
        )
        if layer.index_source is not None:
            step.mass.setdefault(layer.index_source, []).append(mass)
        projected: Tensor = parts.project_output(
            out, weights[f"{prefix}wo_a.weight"], weights[f"{prefix}wo_b.weight"], by
        )
        return projected

    def _far(self, layer: Layer, low: Tensor, hidden: Tensor, by: Rotation, step: _Pass) -> KeySet:
        assert layer.kv_source is not None
        assert layer.index_source is not None
        if layer.owns_kv:
            self._own(layer, hidden, step)
        if layer.selects:
            self._select(layer, low.detach(), hidden.detach(), by, step)
        return KeySet(step.latents[layer.kv_source], step.seen[layer.index_source])

    def _own(self, layer: Layer, hidden: Tensor, step: _Pass) -> None:
        weights, prefix = step.weights, f"layers.{layer.index}.attn."
        count, length = step.rows.shape
        angles = step.rows.compressed
        tensors = CompressorWeights(
            wkv=weights[f"{prefix}compressor.wkv.weight"],
            wgate=weights[f"{prefix}compressor.wgate.weight"] if layer.ratio == 2 else None,
            norm=weights[f"{prefix}compressor.norm.weight"],
            wk=weights[f"{prefix}indexer.wk.weight"],
            k_norm=weights[f"{prefix}indexer.k_norm.weight"],
        )
        first = Rotation(angles.cos[:: layer.ratio], angles.sin[:: layer.ratio])
        latents, keys = self.parts.compress(hidden, tensors, first)
        step.latents[layer.index] = latents.view(count, length // layer.ratio, -1)
        step.keys[layer.index] = keys.view(count, length // layer.ratio, -1)

    def _select(self, layer: Layer, low: Tensor, hidden: Tensor, by: Rotation, step: _Pass) -> None:
        assert layer.kv_source is not None
        prefix = f"layers.{layer.index}.attn.indexer."
        queries, heads = self.parts.index_queries(
            low,
            hidden,
            step.weights[f"{prefix}wq_b.weight"],
            step.weights[f"{prefix}weights_proj.weight"],
            by,
        )
        keys = step.keys[layer.kv_source]
        dots = queries.view(len(keys), -1, queries.shape[-1]) @ keys.mT
        scores: Tensor = self.parts.index_sum(dots, heads)
        step.scores[layer.index] = scores
        visible = step.rows.far[layer.ratio]
        if step.sparse:
            source = layer.index == self.arch.candidate_source_layer_id
            within = step.candidates if layer.mode == "reindex" else None
            visible, blocks = select(scores.detach(), visible, within, self.arch, publish=source)
            if source:
                step.candidates = blocks
        step.seen[layer.index] = visible

    def _index_loss(self, step: _Pass) -> Tensor:
        """Mean over the index layers of the distillation from the layers that use them."""
        total = torch.zeros((), device=step.rows.ids.device)
        valid = (step.rows.documents >= 0).float()
        for source, scores in step.scores.items():
            masses = step.mass[source]
            mass = masses[0] if len(masses) == 1 else torch.stack(masses).mean(0)
            total = total + self.parts.index_loss(scores, mass, step.seen[source], valid)
        return total / max(1, len(step.scores))


def _learning(x: Tensor) -> Tensor:
    """Made to want a gradient even if nothing needs it: one compilation then serves all layers."""
    return x.requires_grad_() if torch.is_grad_enabled() and x.is_leaf else x


def _nothing(streams: Tensor) -> Pending:
    """An output that changes no stream."""
    tokens, m, hidden = streams.shape
    same = torch.eye(m, device=streams.device).repeat(tokens, 1, 1)
    zero = torch.zeros(tokens, m, device=streams.device)
    return Pending(_learning(streams.new_zeros(tokens, hidden)), _learning(zero), _learning(same))


def attention_weights(prefix: str, weights: Weights) -> AttentionWeights:
    """Those of one block; `prefix` ends with "attn."."""
    return AttentionWeights(
        wq_a=weights[f"{prefix}wq_a.weight"],
        q_norm=weights[f"{prefix}q_norm.weight"],
        wq_b=weights[f"{prefix}wq_b.weight"],
        wkv=weights[f"{prefix}wkv.weight"],
        kv_norm=weights[f"{prefix}kv_norm.weight"],
    )


def _hashes(engram_map: EngramMap, device: torch.device) -> tuple[EngramHash, ...]:
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
