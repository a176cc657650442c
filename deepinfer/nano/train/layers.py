"""The parts of a block as pure functions of tensors, differentiable, compiled once for all layers.

Tokens are flat ([tokens, *]). In checkpoint numerics activations are bf16 and rounded where the
engine rounds; in fp32 nothing is. It does not know the order of layers.
Source: `spec/model.md` 4-9; `spec/model-decisions.md` B-F; the references in `deepinfer.ops`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.arch import Arch
from deepinfer.nano.train.quantise import fp4_latents, fp4_vectors, fp8_vectors
from deepinfer.nano.train.sinkhorn import balance
from deepinfer.ops.rotation import Rotation

_NORMALISER = 1e-20
_LEAST_DOT = 1e-6


class Crossed(NamedTuple):
    """What a boundary gives: see `deepinfer.ops.mhc_boundary.Boundary`; `input` is the quantised
    hidden (decoded)."""

    streams: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor
    hidden: Tensor
    input: Tensor


def fp8(x: Tensor) -> Tensor:
    """The FP8 round trip of an activation; nothing in fp32."""
    return fp8_vectors(x) if x.dtype == torch.bfloat16 else x


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in fp32, rounded to the dtype of `x`."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight.to(torch.float32) * wide).to(x.dtype)


def rotate(x: Tensor, by: Rotation, *, inverse: bool = False) -> Tensor:
    """Rotate the last channels of [tokens, *, channels]; fp32 inside."""
    half = by.cos.shape[-1]
    shape = [len(x), *[1] * (x.dim() - 2), half]
    cos, sin = by.cos.view(shape), by.sin.view(shape)
    if inverse:
        sin = -sin
    pairs = x[..., -2 * half :].to(torch.float32).unflatten(-1, (half, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., : -2 * half], turned.to(x.dtype)), dim=-1)


def update(streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Add a sub-layer's output to the streams (D22)."""
    x = streams.to(torch.float32)
    total = post.unsqueeze(-1) * output.to(torch.float32).unsqueeze(1)
    for source in range(x.shape[1]):
        total = total + comb[:, source, :, None] * x[:, source, None, :]
    return total.to(streams.dtype)


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams, rounded: [tokens, hidden]."""
    total = (pre.unsqueeze(-1) * streams.to(torch.float32)).sum(1)
    return total.to(streams.dtype)


class Pending(NamedTuple):
    """A sub-layer's output [tokens, d] that is not yet in the streams, with its post and comb."""

    output: Tensor
    post: Tensor
    comb: Tensor


class HyperWeights(NamedTuple):
    """Weights of one boundary, as in the checkpoint."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


def cross(streams: Tensor, pending: Pending, pre: Tensor, w: HyperWeights, arch: Arch) -> Crossed:
    """Update, coefficients of the next sub-layer, and its input (D19-D22)."""
    m = arch.hc_mult
    streams = update(streams, *pending)
    flat = streams.flatten(1).to(torch.float32)
    u = functional.linear(flat, w.fn) * torch.rsqrt(
        flat.square().mean(-1, keepdim=True) + arch.rms_norm_eps
    )
    new = torch.sigmoid(u[:, :m] * w.scale[0] + w.base[:m]) + arch.hc_eps
    post = 2 * torch.sigmoid(u[:, m : 2 * m] * w.scale[1] + w.base[m : 2 * m])
    logits = (u[:, 2 * m :] * w.scale[2] + w.base[2 * m :]).unflatten(-1, (m, m))
    comb = balance(logits, arch.hc_sinkhorn_iters, arch.hc_eps)
    hidden = rms_norm(collapse(streams, pre), w.norm, arch.rms_norm_eps)
    return Crossed(streams, new, post, comb, hidden, fp8(hidden))


def leave(
    streams: Tensor, pending: Pending, pre: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The last collapse [tokens, d], and its norm."""
    hidden = collapse(update(streams, *pending), pre)
    return hidden, rms_norm(hidden, norm, eps)


class AttentionWeights(NamedTuple):
    """Projections and norms of queries and window keys, as in the checkpoint."""

    wq_a: Tensor
    q_norm: Tensor
    wq_b: Tensor
    wkv: Tensor
    kv_norm: Tensor


def attention_inputs(
    x: Tensor, w: AttentionWeights, by: Rotation, arch: Arch
) -> tuple[Tensor, Tensor, Tensor]:
    """Low-rank queries [tokens, q_lora_rank], rotated queries [tokens, heads, dim], window keys."""
    low = fp8(rms_norm(functional.linear(x, w.wq_a), w.q_norm, arch.rms_norm_eps))
    q = functional.linear(low, w.wq_b).unflatten(-1, (arch.num_attention_heads, -1))
    return low, rotate(q, by), window_key(x, w.wkv, w.kv_norm, by, arch)


def window_key(x: Tensor, wkv: Tensor, kv_norm: Tensor, by: Rotation, arch: Arch) -> Tensor:
    """Window keys [tokens, dim] as stored."""
    key = rms_norm(functional.linear(x, wkv), kv_norm, arch.rms_norm_eps)
    return fp8(rotate(key, by))


def project_output(o: Tensor, wo_a: Tensor, wo_b: Tensor, by: Rotation, arch: Arch) -> Tensor:
    """Rotate back and project [tokens, heads, dim] to [tokens, hidden] (D33)."""
    turned = rotate(o, by, inverse=True)
    grouped = turned.flatten(1).unflatten(1, (arch.o_groups, -1)).transpose(0, 1)
    low = (grouped @ wo_a.unflatten(0, (arch.o_groups, -1)).mT).transpose(0, 1).flatten(1)
    return functional.linear(fp8(low), wo_b)


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU over the last axis (gate, then up); fp32."""
    gate, up = gate_up.to(torch.float32).chunk(2, -1)
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def route(
    hidden: Tensor, gate: Tensor, bias: Tensor, topk: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """Routing weights [tokens, experts] fp32, zero for those not chosen; and who was chosen."""
    logits = functional.linear(hidden.to(torch.float32), gate.to(torch.float32))
    scores = functional.softplus(logits).clamp(min=1e-30).sqrt()
    best = torch.topk((scores + bias).detach(), topk, dim=-1).indices
    chosen = torch.zeros_like(scores).scatter(1, best, 1.0)
    kept = scores * chosen
    return kept / (kept.sum(-1, keepdim=True) + _NORMALISER) * scaling, chosen


class FeedForwardWeights(NamedTuple):
    """gate [experts, d], bias [experts]; w13 [experts, 2 inner, d], w2 [experts, d, inner]; shared
    [2 inner, d] and [d, inner]."""

    gate: Tensor
    bias: Tensor
    w13: Tensor
    w2: Tensor
    shared13: Tensor
    shared2: Tensor


def feed_forward(
    hidden: Tensor, x: Tensor, w: FeedForwardWeights, topk: int, arch: Arch
) -> tuple[Tensor, Tensor]:
    """Routed and shared experts; every expert is computed, as they are tiny.

    Returns:
        [tokens, d], and the share of the tokens that chose each expert [experts].
    """
    experts, _, inner = w.w2.shape
    weights, chosen = route(hidden, w.gate, w.bias, topk, arch.routed_scaling_factor)
    limit = arch.swiglu_limit
    gate_up = functional.linear(x, w.w13.flatten(0, 1)).unflatten(-1, (experts, 2 * inner))
    act = (swiglu(gate_up, limit) * weights.unsqueeze(-1)).to(x.dtype)
    routed = functional.linear(fp8(act).flatten(1), w.w2.transpose(0, 1).flatten(1))
    shared = fp8(swiglu(functional.linear(x, w.shared13), limit).to(x.dtype))
    total = routed.to(torch.float32) + functional.linear(shared, w.shared2).to(torch.float32)
    return total.to(x.dtype), chosen.mean(0)


def latents(hidden: Tensor, wkv: Tensor, wgate: Tensor | None, norm: Tensor, eps: float) -> Tensor:
    """Latents before rotation: [tokens, d] -> [entries, head_dim] (D39, D40)."""
    if wgate is None:
        return rms_norm(functional.linear(hidden, wkv), norm, eps)
    wide = hidden.to(torch.float32)
    value = functional.linear(wide, wkv.to(torch.float32)).unflatten(0, (-1, 2))
    gate = functional.linear(wide, wgate.to(torch.float32)).unflatten(0, (-1, 2))
    pooled = (value * torch.softmax(gate, 1)).sum(1).to(hidden.dtype)
    return rms_norm(pooled, norm, eps)


def stored_latent(latent: Tensor, by: Rotation) -> Tensor:
    """Latents as the cache holds them."""
    turned = rotate(latent, by)
    return fp4_latents(turned) if turned.dtype == torch.bfloat16 else turned


def _index_vector(x: Tensor, by: Rotation) -> Tensor:
    turned = rotate(x, by)
    return fp4_vectors(turned) if turned.dtype == torch.bfloat16 else turned


def index_key(latent: Tensor, wk: Tensor, k_norm: Tensor, by: Rotation, arch: Arch) -> Tensor:
    """Index keys as the cache holds them, [entries, index_head_dim]."""
    return _index_vector(rms_norm(functional.linear(latent, wk), k_norm, arch.rms_norm_eps), by)


class CompressorWeights(NamedTuple):
    """Those of an owner layer, as in the checkpoint; wgate None for ratio 1."""

    wkv: Tensor
    wgate: Tensor | None
    norm: Tensor
    wk: Tensor
    k_norm: Tensor


def compress(
    hidden: Tensor, w: CompressorWeights, by: Rotation, arch: Arch
) -> tuple[Tensor, Tensor]:
    """Entries [entries, head_dim] and index keys as stored; keys give latents no gradient."""
    latent = latents(hidden, w.wkv, w.wgate, w.norm, arch.rms_norm_eps)
    return stored_latent(latent, by), index_key(latent.detach(), w.wk, w.k_norm, by, arch)


def index_queries(
    low: Tensor, hidden: Tensor, wq_b: Tensor, weights_proj: Tensor, by: Rotation, arch: Arch
) -> tuple[Tensor, Tensor]:
    """Index queries [tokens, heads, dim] as stored, and the weights of the heads, fp32."""
    heads = arch.index_n_heads
    weights = functional.linear(hidden, weights_proj).to(torch.float32) * arch.index_scale
    return _index_vector(functional.linear(low, wq_b).unflatten(-1, (heads, -1)), by), weights


def index_sum(dots: Tensor, weights: Tensor) -> Tensor:
    """Scores fp32 [rows, length, entries] from dots [rows, length * heads, entries]."""
    by_head = torch.relu(dots.to(torch.float32)).unflatten(1, (-1, weights.shape[-1]))
    return (by_head * weights.view(*by_head.shape[:3], 1)).sum(2)


class EngramWeights(NamedTuple):
    """wkv [(m + 1) * d, columns * dim], q_weight and k_weight [m, d]."""

    wkv: Tensor
    q_weight: Tensor
    k_weight: Tensor


def recall(streams: Tensor, pending: Pending, rows: Tensor, w: EngramWeights, eps: float) -> Tensor:
    """Engram: updated streams plus what the table rows [tokens, columns, dim] recall (D48)."""
    streams = update(streams, *pending)
    m, hidden = streams.shape[1:]
    kv = functional.linear(fp8(rows.flatten(1)), w.wkv).to(torch.float32)
    parts = kv.unflatten(-1, (m + 1, hidden))
    x, keys, value = streams.to(torch.float32), parts[:, :m], parts[:, m]
    dot = (x * (w.q_weight.float() * w.k_weight.float()) * keys).sum(-1)
    dot = dot * torch.rsqrt(x.square().mean(-1) + eps)
    dot = dot * torch.rsqrt(keys.square().mean(-1) + eps) * hidden**-0.5
    gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp(min=_LEAST_DOT).sqrt())
    return (x + gate.unsqueeze(-1) * value.unsqueeze(1)).to(streams.dtype)
