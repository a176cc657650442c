"""Configs for tests: that of the release, and random small ones of the same family."""

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from deepinfer.arch import Arch, parse_arch

RELEASE_FILE = Path(__file__).parents[1] / "golden_data" / "release" / "config.json"
_RELEASE = json.loads(RELEASE_FILE.read_text(encoding="utf-8"))

Json = dict[str, Any]


def release() -> Json:
    """A fresh copy of the release's config.json, free to be changed."""
    return copy.deepcopy(_RELEASE)


def release_arch() -> Arch:
    return parse_arch(release())


@st.composite
def layer_roles(draw: st.DrawFn) -> Json:
    """Ratios and sources: window-only layers, then ratio 2, then ratio 1, each maybe absent."""
    plain, pairs, singles = (draw(st.integers(0, 3)) for _ in range(3))
    plain += not (plain + pairs + singles)
    ratios = [0] * plain + [2] * pairs + [1] * singles
    first_single = plain + pairs
    sources = {plain} if pairs else set()
    if pairs > 1:
        sources |= draw(st.sets(st.integers(plain, first_single - 1)))
    if singles:
        sources.add(first_single)
    compressed = list(range(plain, len(ratios)))
    extra = draw(st.sets(st.sampled_from(compressed))) if compressed else set[int]()
    index = sources | extra
    candidate = None
    if sources and all(i > max(sources) for i in index - sources) and draw(st.booleans()):
        candidate = max(sources)
    return {
        "num_hidden_layers": len(ratios),
        "compress_ratios": ratios,
        "kv_source_layer_ids": sorted(sources),
        "index_source_layer_ids": sorted(index),
        "candidate_source_layer_id": candidate,
    }


@st.composite
def small_configs(draw: st.DrawFn) -> Json:
    """Valid configs with few layers and experts and small, odd sizes."""
    config = release()
    text = config["text_config"]
    text.update(draw(layer_roles()))
    layers, groups = text["num_hidden_layers"], draw(st.integers(1, 4))
    head_dim, index_dim = draw(st.sampled_from([32, 64, 96, 512])), draw(st.sampled_from([32, 64]))
    text.update(
        vocab_size=256,
        hidden_size=32 * draw(st.integers(1, 5)),
        moe_intermediate_size=32 * draw(st.integers(1, 3)),
        num_attention_heads=groups * draw(st.integers(1, 3)),
        o_groups=groups,
        o_lora_rank=32,
        q_lora_rank=64,
        head_dim=head_dim,
        qk_rope_head_dim=2 * draw(st.integers(1, 16)),
        index_head_dim=index_dim,
        index_n_heads=draw(st.integers(1, 5)),
        n_routed_experts=draw(st.integers(2, 5)),
        num_experts_per_tok=2,
        sliding_window=draw(st.integers(1, 200)),
        hc_mult=draw(st.integers(1, 4)),
        dspark_noise_token_id=255,
        dspark_target_layer_ids=[layers - 1],
        dspark_n_routed_experts=3,
        dspark_num_experts_per_tok=1,
        dspark_block_size=draw(st.integers(1, 7)),
        num_nextn_predict_layers=draw(st.integers(0, 3)),
        engram_layer_ids=draw(st.sampled_from([[], [0]])),
        engram_num_embeddings=[1000],
    )
    text["compress_ratios"] += [0] * text["num_nextn_predict_layers"]
    config["image_token_id"] = 200
    if draw(st.booleans()):
        del config["vision_config"]
    return config


small_archs = small_configs().map(parse_arch)
