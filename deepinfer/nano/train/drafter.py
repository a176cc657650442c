"""The draft stages over many anchors of a batch at once, with the losses of the specification.

Nothing here reaches the backbone, the embedding or the head with a gradient.
Source: `spec/model.md` 10.1; `spec/dspark-and-replay.md` 1.5, 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.arch import Arch, Draft
from deepinfer.nano.train import attention, layers
from deepinfer.nano.train.attention import KeySet
from deepinfer.nano.train.masters import Weights
from deepinfer.nano.train.network import Fuse, Network, Trace, attention_weights, plain
from deepinfer.nano.train.rows import SPOKEN, Rows, near_keys
from deepinfer.ops.rotation import Rotation, layer_frequencies

_DECAY = 4.0  # of the weights of later drafts
_CE, _TV, _CONFIDENCE = 0.1, 0.9, 1.0


@dataclass(frozen=True)
class Anchors:
    """Where blocks hang: anchor a is a committed token, its block stands at a + 1 and on.

    place [rows * count] int64, flat token number of each anchor; ids [rows * count, block] the
    token before each draft, labels the right drafts, weights fp32 of these (0 = there is none).
    """

    place: Tensor
    ids: Tensor
    labels: Tensor
    weights: Tensor


class DraftLosses(NamedTuple):
    """Means over the supervised drafts: the sum with the coefficients of the specification, and of
    the expected acceptance [block] and the confidence's error, both without gradient."""

    total: Tensor
    accepted: Tensor
    confidence_error: Tensor


class Drafted(NamedTuple):
    """Of every draft: base logits without the Markov term [anchors, block, vocab], the hidden state
    before the norm [anchors, block, d]."""

    base: Tensor
    hidden: Tensor


def anchors(rows: Rows, stride: int, offset: int, block: int) -> Anchors:
    """Every `stride`-th token from `offset` on; labels end with the document or the row."""
    count, length = rows.shape
    place = torch.arange(offset, length, stride, device=rows.ids.device)
    steps = torch.arange(block + 2, device=place.device)
    spots = place.unsqueeze(1) + steps
    inside = spots < length
    spots = spots.clamp(max=length - 1)
    same = (rows.documents[:, spots] == rows.documents[:, place].unsqueeze(-1)) & inside
    alive = same.cumprod(-1).to(torch.float32)
    alive = alive * (rows.positions >= rows.lower)[:, place].unsqueeze(-1)
    ids = rows.ids[:, spots]
    weights = rows.weights[:, spots] * alive
    base = torch.arange(count, device=place.device).unsqueeze(1) * length
    return Anchors(
        place=(base + place).flatten(),
        ids=ids[..., 1:-1].flatten(0, 1),
        labels=ids[..., 2:].flatten(0, 1),
        weights=weights[..., 2:].flatten(0, 1),
    )


class Drafter:
    """Draft stages for training, on top of a network's parts.

    Args:
        network: whose trace is drafted for.
        stride: distance of the anchors; must divide the window.
        fuse: compiles the losses.

    Raises:
        ValueError: no draft stages, or a stride that does not divide the window.
    """

    def __init__(self, network: Network, stride: int, fuse: Fuse = plain):
        arch = network.arch
        if arch.draft is None:
            raise ValueError("this architecture has no draft stages")
        if arch.sliding_window % stride:
            raise ValueError(f"stride {stride} does not divide the window {arch.sliding_window}")
        self.network = network
        self.stride = stride
        self.draft: Draft = arch.draft
        self.losses = fuse(draft_losses)

    def forward(
        self, rows: Rows, trace: Trace, found: Anchors, weights: Weights
    ) -> tuple[Drafted, dict[str, Tensor]]:
        """Run the stages; returns the drafts and the loads of their experts by block prefix."""
        network, arch, parts = self.network, self.network.arch, self.network.parts
        block = self.draft.block_size
        main = functional.linear(layers.fp8(trace.features), weights["mtp.0.main_proj.weight"])
        main = layers.fp8(
            layers.rms_norm(main, weights["mtp.0.main_norm.weight"], arch.rms_norm_eps)
        )
        ids = torch.full_like(found.ids, self.draft.noise_token_id)
        ids[:, 0] = found.ids[:, 0]
        flow = network.start(weights["embed.weight"].detach()[ids.flatten()])
        by = _angles(rows, found.place, block, arch)
        seen = self._seen(rows, found.place)
        load: dict[str, Tensor] = {}
        for stage in range(self.draft.stages):
            prefix = f"mtp.{stage}."
            attn = f"{prefix}attn."
            crossed = network.enter(flow, prefix, "attn", weights)
            tensors = attention_weights(attn, weights)
            _, q, own = parts.inputs(crossed.input, tensors, by)
            past = parts.window_key(main, tensors.wkv, tensors.kv_norm, rows.window)
            own = own.unflatten(0, (-1, block))
            everything = torch.ones(len(own), block, block, dtype=torch.bool, device=own.device)
            out, _ = attention.attend(
                q,
                (
                    KeySet(near_keys(past.view(*rows.shape, -1), arch.sliding_window), seen),
                    KeySet(own, everything),
                ),
                weights[f"{attn}attn_sink"],
                arch.softmax_scale,
                pieces=parts.attention,
            )
            output = parts.project_output(
                out, weights[f"{attn}wo_a.weight"], weights[f"{attn}wo_b.weight"], by
            )
            flow, load[prefix] = network.feed_forward(
                network.leave(crossed, output), prefix, self.draft.num_experts_per_tok, weights
            )
        last = f"mtp.{self.draft.stages - 1}."
        hidden, normed = parts.leave(*flow, weights[f"{last}norm.weight"])
        base = functional.linear(normed.float(), weights["head.weight"].detach().float())
        return Drafted(base.unflatten(0, (-1, block)), hidden.unflatten(0, (-1, block))), load

    def loss(
        self, rows: Rows, trace: Trace, found: Anchors, weights: Weights
    ) -> tuple[DraftLosses, dict[str, Tensor]]:
        """Losses of all drafts with the right tokens before them, and expert loads."""
        drafted, load = self.forward(rows, trace, found, weights)
        losses = self.losses(*self._inputs(drafted, trace, found, weights), found.labels,
                             found.weights)  # fmt: skip
        return DraftLosses(*losses), load

    def guesses(
        self, rows: Rows, trace: Trace, found: Anchors, weights: Weights
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the drafts, their raw confidences, and the network's own logits."""
        drafted, _ = self.forward(rows, trace, found, weights)
        return head_outputs(*self._inputs(drafted, trace, found, weights))

    def _inputs(
        self, drafted: Drafted, trace: Trace, found: Anchors, weights: Weights
    ) -> tuple[Tensor, ...]:
        last = f"mtp.{self.draft.stages - 1}."
        spots = found.place.unsqueeze(1) + 1
        spots = spots + torch.arange(self.draft.block_size, device=spots.device)
        spots = spots.clamp(max=len(trace.hidden) - 1)
        return (
            drafted.base,
            drafted.hidden,
            trace.hidden.detach()[spots],
            weights["head.weight"].detach(),
            weights[f"{last}markov_head.embed.weight"],
            weights[f"{last}markov_head.head.weight"],
            weights[f"{last}confidence_head.proj.weight"],
            found.ids,
        )

    def _seen(self, rows: Rows, place: Tensor) -> Tensor:
        """What each query of a block sees of the window chunks: the same as its anchor."""
        window, block = self.network.arch.sliding_window, self.draft.block_size
        by_anchor = rows.near_decoder.flatten(0, 1)[place]
        grouped = by_anchor.view(-1, window // self.stride, 2 * window)
        return grouped.repeat_interleave(block, 1)


def _angles(rows: Rows, place: Tensor, block: int, arch: Arch) -> Rotation:
    freqs = layer_frequencies(arch)[0].to(place.device)
    steps = torch.arange(1, block + 1, device=place.device)
    positions = (rows.positions.flatten()[place].unsqueeze(1) + steps).flatten()
    angles = positions.to(torch.float32).unsqueeze(-1) * freqs
    return Rotation(torch.cos(angles), torch.sin(angles))


def head_outputs(
    base: Tensor,
    hidden: Tensor,
    target_hidden: Tensor,
    head: Tensor,
    markov_embed: Tensor,
    markov_head: Tensor,
    confidence: Tensor,
    before: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and raw confidences of teacher-forced drafts, and the network's logits; all fp32.

    Args:
        base: [anchors, block, vocab] fp32.
        hidden: [anchors, block, d], before the norm.
        target_hidden: [anchors, block, d] the network's normalised hidden states at the same rows.
        head: [vocab, d].
        markov_embed: [vocab, rank].
        markov_head: [vocab, rank].
        confidence: [1, d + rank].
        before: [anchors, block] the token before each draft.
    """
    embedded = functional.embedding(before, markov_embed).to(torch.float32)
    logits = base + functional.linear(embedded, markov_head.to(torch.float32))
    joined = torch.cat((hidden.to(torch.float32), embedded), -1)
    says = functional.linear(joined, confidence.to(torch.float32)).squeeze(-1)
    target = functional.linear(target_hidden.to(torch.float32), head.to(torch.float32))
    return logits, says, target


def draft_losses(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy, total variation and confidence of teacher-forced drafts.

    Args:
        tensors: those of `head_outputs`; then labels [anchors, block] and their weights fp32, 0 =
            not supervised.

    Returns:
        As `DraftLosses`.
    """
    *inputs, labels, weights = tensors
    logits, says, target = head_outputs(*inputs)
    guess = torch.log_softmax(logits, -1)
    distance = (guess.exp() - torch.softmax(target, -1)).abs().sum(-1)
    accepted = 1 - 0.5 * distance.detach()
    depth = torch.arange(logits.shape[1], device=logits.device)
    each = weights * torch.exp(-depth / _DECAY)
    whole = each.sum().clamp(min=1e-6)
    likely = -guess.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    doubt = functional.binary_cross_entropy_with_logits(says, accepted, reduction="none")
    total = (each * (_CE * likely + _TV * distance + _CONFIDENCE * doubt)).sum() / whole
    spoken = (weights >= SPOKEN).to(torch.float32)
    count = spoken.sum(0).clamp(min=1)
    error = ((torch.sigmoid(says) - accepted) * spoken).sum().abs() / spoken.sum().clamp(min=1)
    return total, (accepted * spoken).sum(0).div(count).detach(), error.detach()
