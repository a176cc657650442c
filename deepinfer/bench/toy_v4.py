"""The peer of the CPU bench: a DeepSeek-V4 of `transformers`, as alike as its code allows.

V4 is the family before V4.1: no Engram, no candidate blocks, other compression ratios, plain
floating-point weights. Width, depth, heads, experts and window are ours; a layer that selects
entries here selects there, and a layer that reuses a selection has a dense compressed branch there.
`transformers` is not a dependency; only this file imports it. Knows nothing of time.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.arch import Arch
from deepinfer.errors import ConfigError

TESTED = "5.17.0"


def _layer_types(arch: Arch) -> list[str]:
    names: list[str] = []
    for layer in arch.layers:
        if layer.ratio == 0:
            names.append("sliding_attention")
        elif layer.selects:
            names.append("compressed_sparse_attention")
        else:
            names.append("heavily_compressed_attention")
    return names


def build_toy(arch: Arch, dtype: torch.dtype, seed: int) -> Any:
    """A causal language model with random weights and eager attention (the only kind it has).

    Args:
        arch: sizes.
        dtype: of weights and activations; the model keeps some parts in fp32 itself.
        seed: of the weights.

    Raises:
        ConfigError: `transformers` is not installed, or is too old to have DeepSeek-V4.
    """
    try:
        from transformers.models.deepseek_v4 import (  # pyright: ignore[reportMissingImports]
            DeepseekV4Config,
            DeepseekV4ForCausalLM,
        )
    except ImportError as error:
        raise ConfigError(
            f"the peer of this bench needs transformers {TESTED}: pip install "
            f"transformers=={TESTED} ({error})"
        ) from error
    config = DeepseekV4Config(
        vocab_size=arch.vocab_size,
        hidden_size=arch.hidden_size,
        moe_intermediate_size=arch.moe_intermediate_size,
        num_hidden_layers=arch.num_hidden_layers,
        num_attention_heads=arch.num_attention_heads,
        head_dim=arch.head_dim,
        qk_rope_head_dim=arch.qk_rope_head_dim,
        q_lora_rank=arch.q_lora_rank,
        o_groups=arch.o_groups,
        o_lora_rank=arch.o_lora_rank,
        num_experts_per_tok=arch.num_experts_per_tok,
        n_routed_experts=arch.n_routed_experts,
        max_position_embeddings=arch.max_position_embeddings,
        layer_types=_layer_types(arch),
        mlp_layer_types=["moe"] * arch.num_hidden_layers,
        sliding_window=arch.sliding_window,
        index_n_heads=arch.index_n_heads,
        index_head_dim=arch.index_head_dim,
        index_topk=arch.index_topk,
        hc_mult=arch.hc_mult,
        hc_sinkhorn_iters=arch.hc_sinkhorn_iters,
        num_nextn_predict_layers=0,
        attn_implementation="eager",
    )
    torch.manual_seed(seed)
    return DeepseekV4ForCausalLM(config).to(dtype).eval()
