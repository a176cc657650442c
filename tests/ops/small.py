"""Two small architectures with everything that the release has, and maker functions on them."""

from dataclasses import replace

import torch

from deepinfer.arch import Arch, Draft, Engram, RopeScaling

SMALL = Arch(
    vocab_size=300,
    hidden_size=96,
    num_hidden_layers=4,
    moe_intermediate_size=64,
    num_attention_heads=4,
    head_dim=64,
    qk_rope_head_dim=16,
    q_lora_rank=64,
    o_lora_rank=32,
    o_groups=2,
    swiglu_limit=1.5,
    rms_norm_eps=1e-20,
    max_position_embeddings=4096,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=RopeScaling(16.0, 32.0, 1.0, 512),
    n_routed_experts=12,
    num_experts_per_tok=3,
    routed_scaling_factor=1.5,
    sliding_window=16,
    compress_ratios=(0, 2, 1, 1, 0, 0),
    kv_source_layer_ids=(1, 2),
    index_source_layer_ids=(1, 2, 3),
    index_n_heads=6,
    index_head_dim=32,
    index_topk=12,
    candidate_source_layer_id=2,
    candidate_topk_blocks=5,
    candidate_block_size=4,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
    image_token_id=299,
    engram=Engram((1,), (96060,), 4, 8000, 4, 32, 2, 200),
    draft=Draft(2, 5, 298, (2, 3), 32, 8, 2),
    vision=None,
)
TWO_STREAMS = replace(SMALL, hc_mult=2, hc_sinkhorn_iters=10, hc_eps=1e-5, rms_norm_eps=1e-6)


def same(found, expected):
    """Whether two results of an operation are equal bit by bit."""
    if isinstance(expected, torch.Tensor):
        alike = found.shape == expected.shape and found.dtype == expected.dtype
        return alike and bool((found == expected).all())
    if expected is None:
        return found is None
    return all(same(f, e) for f, e in zip(found, expected, strict=True))
