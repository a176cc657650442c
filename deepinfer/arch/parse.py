"""Reads `config.json` into an `Arch` and refuses, by name, whatever it does not know.

Every fault is collected and reported in one `ConfigError`. Torch-free.
Source: `spec/model.md` 2.1, `spec/model-decisions.md` D32, D42, D45, D59.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from deepinfer.arch.check import contradictions
from deepinfer.arch.spec import Arch, Draft, Engram, RopeScaling, Vision
from deepinfer.errors import ConfigError

MODEL_TYPE = "deepseek_v41"

# Keys whose value is part of the architecture: present or not, nothing else is accepted.
_FIXED_TEXT: dict[str, object] = {
    "model_type": "deepseek_v41_text",
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "gate_temp": 1.0,
    "hc_shifted": True,
    "use_fp4_sparse_kv": True,
    "dspark_target_attn_input": True,
}
# Keys that say nothing about inference; vLLM and transformers write them.
_IGNORED_TEXT = frozenset({"initializer_range", "use_cache", "dtype", "torch_dtype"})
_IGNORED_TOP = frozenset({"transformers_version", "_name_or_path", "use_cache"})
_QUANTIZATION: dict[str, object] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
_ROPE: dict[str, object] = {"rope_type": "yarn"}
# Known even where a config without the part leaves them unread.
_ENGRAM_KEYS = {
    "engram_layer_ids",
    "engram_num_embeddings",
    "engram_max_ngram_size",
    "engram_vocab_size",
    "engram_n_heads",
    "engram_head_dim",
    "engram_pad_token_id",
    "engram_pad_id",  # alias, D59
    "engram_compressed_vocab_size",
}
_DRAFT_KEYS = {
    "num_nextn_predict_layers",
    "dspark_block_size",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dspark_markov_rank",
    "dspark_n_routed_experts",
    "dspark_num_experts_per_tok",
}


class _Reader:
    """Takes typed values out of one JSON object and remembers what was asked for."""

    def __init__(self, where: str, data: object, problems: list[str]):
        self.where = where
        self.problems = problems
        self.data: Mapping[str, object] = {}
        self.seen: set[str] = set()
        if isinstance(data, dict):
            self.data = cast("Mapping[str, object]", data)
        else:
            problems.append(f"{where}: expected an object, found {type(data).__name__}")

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def raw(self, key: str) -> object:
        self.seen.add(key)
        if key not in self.data:
            self.problems.append(f"{self.where}: key {key!r} is missing")
            return None
        return self.data[key]

    def _wrong(self, key: str, wanted: str) -> None:
        if key in self.data:
            self.problems.append(f"{self.where}.{key}: expected {wanted}, found {self.data[key]!r}")

    def integer(self, key: str, least: int = 1) -> int:
        value = self.raw(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self._wrong(key, f"an integer >= {least}")
        return least

    def number(self, key: str, least: float = 0.0) -> float:
        value = self.raw(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > least:
            return float(value)
        self._wrong(key, f"a number > {least:g}")
        return 1.0

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.raw(key)
        if isinstance(value, list):
            items = cast("list[object]", value)
            if all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in items):
                return tuple(cast("list[int]", items))
        self._wrong(key, "a list of integers >= 0")
        return ()

    def fixed(self, wanted: Mapping[str, object], *, required: bool = False) -> None:
        for key, value in wanted.items():
            self.seen.add(key)
            if key not in self.data:
                if required:
                    self.problems.append(f"{self.where}: key {key!r} is missing")
            elif self.data[key] != value:
                self.problems.append(
                    f"{self.where}.{key}: {self.data[key]!r} is not supported, only {value!r}"
                )

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        for key in sorted(set(self.data) - self.seen - ignored):
            self.problems.append(f"{self.where}: unknown key {key!r}")


def load_arch(path: str | Path) -> Arch:
    """Read the architecture of a checkpoint.

    Args:
        path: a checkpoint directory, or a `config.json` file.

    Raises:
        ConfigError: the file is absent, no JSON, of another model family, or holds keys or values
            that this engine does not implement; all faults are listed.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        data: object = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; give a checkpoint directory") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file}: not readable as JSON: {error}") from error
    return parse_arch(data, str(file))


def parse_arch(data: object, where: str = "config.json") -> Arch:
    """Turn the parsed JSON of a `config.json` into an `Arch`.

    Args:
        data: what `json.load` returned.
        where: name used in messages.

    Raises:
        ConfigError: as in `load_arch`.
    """
    top = cast("dict[str, object]", data) if isinstance(data, dict) else {}
    model_type = top.get("model_type")
    if model_type != MODEL_TYPE:
        raise ConfigError(
            f"{where}: model_type {model_type!r} is not supported; this engine runs "
            f"{MODEL_TYPE!r} (DeepSeek-V4.1) only"
        )
    problems: list[str] = []
    arch = _parse(top, problems)
    if not problems:
        problems += contradictions(arch)
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"{where}: {len(problems)} problem(s)\n{listed}")
    return arch


def _parse(data: dict[str, object], problems: list[str]) -> Arch:
    top = _Reader("config", data, problems)
    top.fixed({"model_type": MODEL_TYPE, "architectures": ["DeepseekV41ForCausalLM"]})
    top.fixed({"dtype": "bfloat16", "torch_dtype": "bfloat16", "tie_word_embeddings": False})
    quantization = _Reader("quantization_config", top.raw("quantization_config"), problems)
    quantization.fixed(_QUANTIZATION, required=True)
    quantization.finish()
    text = _Reader("text_config", top.raw("text_config"), problems)
    text.fixed(_FIXED_TEXT)
    arch = _text(text, top, problems)
    top.finish(_IGNORED_TOP)
    text.finish(_IGNORED_TEXT)
    return arch


def _text(text: _Reader, top: _Reader, problems: list[str]) -> Arch:
    sources = text.integers("kv_source_layer_ids")
    if "index_k_source_layer_ids" in text.data:
        text.fixed({"index_k_source_layer_ids": list(sources)})
    return Arch(
        vocab_size=text.integer("vocab_size"),
        hidden_size=text.integer("hidden_size"),
        num_hidden_layers=text.integer("num_hidden_layers"),
        moe_intermediate_size=text.integer("moe_intermediate_size"),
        num_attention_heads=text.integer("num_attention_heads"),
        head_dim=text.integer("head_dim"),
        qk_rope_head_dim=text.integer("qk_rope_head_dim"),
        q_lora_rank=text.integer("q_lora_rank"),
        o_lora_rank=text.integer("o_lora_rank"),
        o_groups=text.integer("o_groups"),
        swiglu_limit=text.number("swiglu_limit"),
        rms_norm_eps=text.number("rms_norm_eps"),
        max_position_embeddings=text.integer("max_position_embeddings"),
        rope_theta=text.number("rope_theta"),
        compress_rope_theta=text.number("compress_rope_theta"),
        rope_scaling=_rope(text, problems),
        n_routed_experts=text.integer("n_routed_experts"),
        num_experts_per_tok=text.integer("num_experts_per_tok"),
        routed_scaling_factor=text.number("routed_scaling_factor"),
        sliding_window=text.integer("sliding_window"),
        compress_ratios=text.integers("compress_ratios"),
        kv_source_layer_ids=sources,
        index_source_layer_ids=text.integers("index_source_layer_ids"),
        index_n_heads=text.integer("index_n_heads"),
        index_head_dim=text.integer("index_head_dim"),
        index_topk=text.integer("index_topk"),
        candidate_source_layer_id=_optional(text, "candidate_source_layer_id"),
        candidate_topk_blocks=text.integer("candidate_topk_blocks"),
        candidate_block_size=text.integer("candidate_block_size"),
        hc_mult=text.integer("hc_mult"),
        hc_sinkhorn_iters=text.integer("hc_sinkhorn_iters"),
        hc_eps=text.number("hc_eps"),
        bos_token_id=top.integer("bos_token_id", 0),
        eos_token_id=top.integer("eos_token_id", 0),
        pad_token_id=top.integer("pad_token_id", 0),
        image_token_id=top.integer("image_token_id", 0),
        engram=_engram(text),
        draft=_draft(text),
        vision=_vision(top, problems),
    )


def _optional(text: _Reader, key: str) -> int | None:
    if text.has(key):
        return text.integer(key, 0)
    text.seen.add(key)
    return None


def _rope(text: _Reader, problems: list[str]) -> RopeScaling:
    rope = _Reader("text_config.rope_scaling", text.raw("rope_scaling"), problems)
    rope.fixed(_ROPE, required=True)
    scaling = RopeScaling(
        factor=rope.number("factor"),
        beta_fast=rope.number("beta_fast"),
        beta_slow=rope.number("beta_slow"),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
    )
    rope.finish()
    return scaling


def _engram(text: _Reader) -> Engram | None:
    text.seen |= _ENGRAM_KEYS
    if not text.data.get("engram_layer_ids"):
        return None
    pad, alias = "engram_pad_token_id", "engram_pad_id"
    if pad not in text.data:
        pad = alias
    elif alias in text.data:
        text.fixed({alias: text.data[pad]})
    return Engram(
        layer_ids=text.integers("engram_layer_ids"),
        num_embeddings=text.integers("engram_num_embeddings"),
        max_ngram_size=text.integer("engram_max_ngram_size", 2),
        vocab_size=text.integer("engram_vocab_size", 2),
        n_heads=text.integer("engram_n_heads"),
        head_dim=text.integer("engram_head_dim"),
        pad_token_id=text.integer(pad, 0),
        compressed_vocab_size=text.integer("engram_compressed_vocab_size"),
    )


def _draft(text: _Reader) -> Draft | None:
    text.seen |= _DRAFT_KEYS
    if not text.data.get("num_nextn_predict_layers"):
        return None
    return Draft(
        stages=text.integer("num_nextn_predict_layers"),
        block_size=text.integer("dspark_block_size"),
        noise_token_id=text.integer("dspark_noise_token_id", 0),
        target_layer_ids=text.integers("dspark_target_layer_ids"),
        markov_rank=text.integer("dspark_markov_rank"),
        n_routed_experts=text.integer("dspark_n_routed_experts"),
        num_experts_per_tok=text.integer("dspark_num_experts_per_tok"),
    )


def _vision(top: _Reader, problems: list[str]) -> Vision | None:
    if not top.has("vision_config"):
        top.seen.add("vision_config")
        return None
    vision = _Reader("vision_config", top.raw("vision_config"), problems)
    vision.fixed({"model_type": "deepseek_v41_vision"})
    ratio = vision.data.get("max_wh_ratio")
    vision.seen.add("max_wh_ratio")
    parsed = Vision(
        num_hidden_layers=vision.integer("num_hidden_layers", 0),
        hidden_size=vision.integer("hidden_size"),
        num_attention_heads=vision.integer("num_attention_heads"),
        intermediate_size=vision.integer("intermediate_size"),
        patch_size=vision.integer("patch_size"),
        rope_theta=vision.number("rope_theta"),
        downsample_ratio=vision.integer("downsample_ratio"),
        max_image_tokens=vision.integer("max_image_tokens"),
        min_pixels=vision.integer("min_pixels", 0),
        max_wh_ratio=None if ratio is None else vision.number("max_wh_ratio"),
    )
    vision.finish()
    return parsed
