"""Attention with a sink over one or two sets of shared key-values, with a gradient of its own.

Every query head of a token sees the same keys, and key and value are the same vector. Scores are
made again in the backward pass, so that none is kept. It does not know how keys came about.
Source: `spec/model.md` 4 (attention kernel); `spec/model-decisions.md` D34.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class KeySet(NamedTuple):
    """Groups of queries with their keys.

    keys [groups, count, dim]; seen [groups, tokens of a group, count] bool. The queries of all
    tokens, in order, fall into `groups` equal runs.
    """

    keys: Tensor
    seen: Tensor


class Pieces(NamedTuple):
    """The element-wise parts, compiled or not; see the functions of these names."""

    weigh: Callable[..., Any]
    unweigh: Callable[..., Any]
    mass: Callable[..., Any]
    divide: Callable[..., Any]
    agreement: Callable[..., Any]


def _heads(scores: Tensor, seen: Tensor, heads: int, scale: float) -> Tensor:
    """fp32 scores [groups, tokens, heads, count], -inf where not seen."""
    wide = scores.unflatten(1, (-1, heads)).to(torch.float32) * scale
    return wide.masked_fill(~seen.unsqueeze(2), -torch.inf)


def weigh(
    scores: list[Tensor], seen: list[Tensor], sink: Tensor, scale: float
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Numerators (rounded to the dtype of the scores), largest score and denominator.

    Args:
        scores: [groups, tokens * heads, count] of each key set.
        seen: their `KeySet.seen`.
        sink: [heads] fp32.
        scale: factor on the scores.

    Returns:
        Numerators in the shapes of `scores`; high and total, fp32 [all tokens, heads].
    """
    heads = len(sink)
    wide = [_heads(s, mask, heads, scale) for s, mask in zip(scores, seen, strict=True)]
    tops = [w.amax(-1).view(-1, heads) for w in wide]
    high = tops[0] if len(tops) == 1 else torch.maximum(tops[0], tops[1])
    high = torch.where(high == -torch.inf, sink, high)  # a token that sees nothing attends to it
    total = torch.exp(sink - high)
    shares: list[Tensor] = []
    for w, s in zip(wide, scores, strict=True):
        share = torch.exp(w - high.view(*w.shape[:3], 1))
        total = total + share.sum(-1).view(-1, heads)
        shares.append(share.to(s.dtype).flatten(1, 2))
    return shares, high, total


def unweigh(
    scores: list[Tensor],
    grads: list[Tensor],
    seen: list[Tensor],
    high: Tensor,
    total: Tensor,
    delta: Tensor,
    scale: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """Probabilities and gradients of the scores, both in the shapes of `scores`.

    Args:
        scores: as of `weigh`, made again.
        grads: output gradients times keys, same shapes.
        seen: as of `weigh`.
        high: of `weigh`.
        total: of `weigh`.
        delta: fp32 [all tokens, heads], output gradient times output.
        scale: factor on the scores.
    """
    heads = high.shape[-1]
    probs: list[Tensor] = []
    back: list[Tensor] = []
    for s, g, mask in zip(scores, grads, seen, strict=True):
        wide = _heads(s, mask, heads, scale)
        shape = (*wide.shape[:3], 1)
        p = torch.exp(wide - high.view(shape)) / total.view(shape)
        d = p * (g.unflatten(1, (-1, heads)).to(torch.float32) - delta.view(shape)) * scale
        probs.append(p.to(s.dtype).flatten(1, 2))
        back.append(d.to(s.dtype).flatten(1, 2))
    return probs, back


def mass(share: Tensor, total: Tensor) -> Tensor:
    """Probabilities, mean over heads: [groups, tokens, count] from numerators of `weigh`."""
    by_head = share.unflatten(1, (-1, total.shape[-1])).to(torch.float32)
    return (by_head / total.view(*by_head.shape[:3], 1)).mean(2).to(share.dtype)


def divide(summed: Tensor, total: Tensor) -> Tensor:
    """Weighted sums [tokens, heads, dim] over their denominators [tokens, heads]."""
    return (summed.to(torch.float32) / total.unsqueeze(-1)).to(summed.dtype)


def agreement(grad: Tensor, out: Tensor) -> Tensor:
    """fp32 [tokens, heads], products of output gradients and outputs."""
    return (grad.to(torch.float32) * out.to(torch.float32)).sum(-1)


PLAIN = Pieces(weigh, unweigh, mass, divide, agreement)


def _grouped(x: Tensor, keys: Tensor) -> Tensor:
    """[tokens, heads, dim] -> [groups, tokens * heads, dim], a view."""
    return x.reshape(len(keys), -1, x.shape[-1])


def _summed(shares: list[Tensor], keys: list[Tensor], like: Tensor) -> Tensor:
    """Sum over the sets of shares times keys, in the shape of the queries."""
    total = shares[0] @ keys[0]
    for share, key in zip(shares[1:], keys[1:], strict=True):
        total = torch.baddbmm(_grouped(total.view(like.shape), key), share, key)
    return total.view(like.shape)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pieces: Pieces,
        scale: float,
        q: Tensor,
        sink: Tensor,
        mass_of: int | None,
        *sets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        keys, seen = list(sets[0::2]), list(sets[1::2])
        scores = [_grouped(q, k) @ k.mT for k in keys]
        shares, high, total = pieces.weigh(scores, seen, sink, scale)
        out = pieces.divide(_summed(shares, keys, q), total)
        seen_mass = q.new_zeros(0)
        if mass_of is not None:
            seen_mass = pieces.mass(shares[mass_of], total)
        ctx.save_for_backward(q, sink, out, high, total, *sets)
        ctx.pieces, ctx.scale = pieces, scale
        ctx.mark_non_differentiable(seen_mass)
        return out, seen_mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, sink, out, high, total, *sets = ctx.saved_tensors
        keys, seen, grad = list(sets[0::2]), list(sets[1::2]), grads[0].contiguous()
        delta = ctx.pieces.agreement(grad, out)
        scores = [_grouped(q, k) @ k.mT for k in keys]
        towards = [_grouped(grad, k) @ k.mT for k in keys]
        probs, back = ctx.pieces.unweigh(scores, towards, seen, high, total, delta, ctx.scale)
        del scores, towards
        grad_q = _summed(back, keys, q)
        grad_sink = -(torch.exp(sink - high) / total * delta).sum(0)
        of_sets: list[Tensor | None] = []
        for p, b, k in zip(probs, back, keys, strict=True):
            through = b.mT @ _grouped(q, k)
            of_sets += [torch.baddbmm(through, p.mT, _grouped(grad, k)), None]
        return None, None, grad_q, grad_sink, None, *of_sets


def attend(
    q: Tensor,
    sets: tuple[KeySet, ...],
    sink: Tensor,
    scale: float,
    *,
    mass_of: int | None = None,
    pieces: Pieces = PLAIN,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over one or two key sets together; the sink is in the denominator only.

    Args:
        q: [tokens, heads, dim] bf16 or fp32.
        sets: one or two.
        sink: [heads] fp32.
        scale: factor on the dot products.
        mass_of: number of the set whose attention mass is wanted, or None.
        pieces: compiled parts.

    Returns:
        [tokens, heads, dim], and the mass [groups, tokens of a group, count]: probabilities of that
        set, mean over heads, without gradient (empty if not wanted).
    """
    flat = [tensor for pair in sets for tensor in pair]
    return _Attend.apply(pieces, scale, q, sink, mass_of, *flat)  # type: ignore[no-any-return]
