"""The `config.json` of the embedded model: production head geometry, everything else small.

Every kind of layer of the release occurs. It knows nothing of weights or of the tokenizer but its
counts.
"""

from __future__ import annotations

ENGRAM_PAD_ID = 2
VOCAB_SIZE = 2048
TRAINED_VOCAB_SIZE = 4096

# Layer: 0 window | 1 window, Engram | 2 owner of ratio 2 | 3 reuse | 4 owner of ratio 2, Engram
# | 5 owner of ratio 1 and candidate source | 6 reuse | 7 reindex | 8 reuse; then the three draft
# stages.
_RATIOS = [0, 0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0]
# Sums of the first 2 x 6 primes >= engram_vocab_size, six a layer (model.md 9.2).
_ENGRAM_VOCAB_SIZE = 1000
_ENGRAM_ROWS = [6126, 6332]


def nano_config(noise_token_id: int, image_token_id: int, token_classes: int) -> dict[str, object]:
    """The complete nested `config.json`, with every key of the release.

    Args:
        noise_token_id: token that fills unknown positions of a draft block.
        image_token_id: token of image positions.
        token_classes: classes of the tokenizer's ids (model.md 9.1).
    """
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": image_token_id,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": {
            "model_type": "deepseek_v41_text",
            **_network(),
            **_attention(),
            **_engram(token_classes),
            **_draft(noise_token_id),
        },
        "vision_config": _vision(),
    }


# Layer: 0 window | 1 window, Engram | 2 owner of ratio 2 | 3 reuse, Engram | 4 owner of ratio 1 and
# candidate source | 5 reuse | 6 reindex | 7 reuse; then the three draft stages.
_TRAINED: dict[str, object] = {
    "vocab_size": TRAINED_VOCAB_SIZE,
    "num_hidden_layers": 8,
    "moe_intermediate_size": 96,
    "n_routed_experts": 12,
    "num_experts_per_tok": 4,
    "num_attention_heads": 4,
    "o_groups": 2,
    "o_lora_rank": 64,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 4],
    "index_source_layer_ids": [2, 4, 6],
    "index_n_heads": 8,
    "candidate_source_layer_id": 4,
    "engram_layer_ids": [1, 3],
    "dspark_target_layer_ids": [5, 6, 7],
}


def trained_config(
    noise_token_id: int, image_token_id: int, token_classes: int
) -> dict[str, object]:
    """The `config.json` of the model with trained weights; parameters as of `nano_config`."""
    config = nano_config(noise_token_id, image_token_id, token_classes)
    text = config["text_config"]
    assert isinstance(text, dict)
    config["text_config"] = text | _TRAINED
    return config


def _network() -> dict[str, object]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "num_hidden_layers": 9,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
    }


def _attention() -> dict[str, object]:
    return {
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 64,
        "o_lora_rank": 32,
        "o_groups": 4,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": 65536,
        "rope_theta": 10000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 4096,
        },
        "sliding_window": 128,
        "compress_ratios": list(_RATIOS),
        "compress_rope_theta": 160000,
        "kv_source_layer_ids": [2, 4, 5],
        "index_source_layer_ids": [2, 4, 5, 7],
        "index_n_heads": 16,
        "index_head_dim": 128,
        "index_topk": 64,
        "candidate_source_layer_id": 5,
        "candidate_topk_blocks": 24,
        "candidate_block_size": 8,
    }


def _engram(token_classes: int) -> dict[str, object]:
    return {
        "engram_layer_ids": [1, 4],
        "engram_num_embeddings": list(_ENGRAM_ROWS),
        "engram_max_ngram_size": 4,
        "engram_vocab_size": _ENGRAM_VOCAB_SIZE,
        "engram_n_heads": 2,
        "engram_head_dim": 64,
        "engram_pad_token_id": ENGRAM_PAD_ID,
        "engram_compressed_vocab_size": token_classes,
    }


def _draft(noise_token_id: int) -> dict[str, object]:
    return {
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": noise_token_id,
        "dspark_target_layer_ids": [6, 7, 8],
        "dspark_markov_rank": 64,
        "dspark_n_routed_experts": 4,
        "dspark_num_experts_per_tok": 2,
    }


def _vision() -> dict[str, object]:
    """No image tower: zero layers; the other numbers are those of the smallest legal one."""
    return {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 0,
        "hidden_size": 64,
        "num_attention_heads": 1,
        "intermediate_size": 176,
        "patch_size": 14,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 64,
        "min_pixels": 295936,
        "max_wh_ratio": None,
    }
