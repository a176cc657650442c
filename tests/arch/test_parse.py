"""What `config.json` may say, and the sentence that each fault gets."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.arch import Arch, load_arch, parse_arch
from deepinfer.errors import ConfigError
from tests.arch.configs import RELEASE_FILE, Json, release, small_configs

Change = Callable[[Json], object]


def faults(change: Change) -> str:
    config = release()
    change(config)
    with pytest.raises(ConfigError) as caught:
        parse_arch(config)
    return str(caught.value)


def text(**values: object) -> Change:
    """Sets values in `text_config`."""
    return lambda config: config["text_config"].update(values)


def test_release_config_is_read_field_by_field():
    arch = load_arch(RELEASE_FILE)
    given_text = release()["text_config"]
    same = [key for key in given_text if hasattr(arch, key) and key != "rope_scaling"]
    assert len(same) >= 30
    for key in same:
        value = given_text[key]
        assert getattr(arch, key) == (tuple(value) if isinstance(value, list) else value), key
    assert arch.rope_scaling.factor == 16
    assert arch.rope_scaling.original_max_position_embeddings == 65536
    assert arch.engram is not None
    assert arch.engram.columns == 24
    assert arch.draft is not None
    assert (arch.draft.stages, arch.max_draft) == (3, 5)
    assert arch.vision is not None
    assert arch.vision.max_wh_ratio is None


def test_directory_and_file_give_the_same_architecture(tmp_path: Path):
    (tmp_path / "config.json").write_bytes(RELEASE_FILE.read_bytes())
    assert load_arch(tmp_path) == load_arch(str(RELEASE_FILE))


def test_absent_file_is_named_with_the_remedy(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"config\.json: no such file; give a checkpoint"):
        load_arch(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"model", b"\xff\xfe{}", b'{"a": 1,}'])
def test_content_that_is_no_json_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="not readable as JSON"):
        load_arch(file)


@pytest.mark.parametrize("data", [None, 3, "deepseek_v41", [], [{}], {}])
def test_json_that_is_no_model_config_is_refused(data: object):
    with pytest.raises(ConfigError, match="model_type None is not supported"):
        parse_arch(data)


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v3", "llama", 41])
def test_other_model_families_are_refused_by_name(name: object):
    message = faults(lambda config: config.update(model_type=name))
    assert f"model_type {name!r} is not supported" in message
    assert "deepseek_v41" in message


def _places(config: Json) -> list[tuple[str, Json]]:
    return [
        ("config", config),
        ("text_config", config["text_config"]),
        ("quantization_config", config["quantization_config"]),
        ("text_config.rope_scaling", config["text_config"]["rope_scaling"]),
        ("vision_config", config["vision_config"]),
    ]


@pytest.mark.parametrize("place", range(5))
def test_unknown_keys_are_named_with_their_place(place: int):
    where, _ = _places(release())[place]
    message = faults(lambda config: _places(config)[place][1].update(surprise_key=1))
    assert f"{where}: unknown key 'surprise_key'" in message
    assert "1 problem(s)" in message


# Absent optional keys mean a part that the model does not have, or the one supported value.
OPTIONAL = {
    *("architectures", "dtype", "vision_config"),
    *("model_type", "num_key_value_heads", "hidden_act", "attention_bias", "attention_dropout"),
    *("tie_word_embeddings", "initializer_range", "use_cache", "n_shared_experts"),
    *("scoring_func", "topk_method", "norm_topk_prob", "candidate_source_layer_id"),
    *("engram_layer_ids", "num_nextn_predict_layers", "max_wh_ratio"),
}
KEYS = [(i, key) for i, (_, part) in enumerate(_places(release())) for key in part]


@pytest.mark.parametrize(("place", "key"), KEYS)
def test_a_missing_key_is_named_unless_it_is_optional(place: int, key: str):
    config = release()
    where, part = _places(config)[place]
    del part[key]
    if where == "config" and key == "model_type":
        with pytest.raises(ConfigError, match="model_type None"):
            parse_arch(config)
    elif key == "num_nextn_predict_layers":
        with pytest.raises(ConfigError, match="0 draft stages need 40"):
            parse_arch(config)
    elif key in OPTIONAL:
        assert isinstance(parse_arch(config), Arch)
    else:
        with pytest.raises(ConfigError) as caught:
            parse_arch(config)
        named = "engram_pad_token_id" if key == "engram_pad_token_id" else key
        assert named.removesuffix("_token_id") in str(caught.value)


@pytest.mark.parametrize(("place", "key"), KEYS)
def test_a_value_of_the_wrong_type_is_never_accepted(place: int, key: str):
    ignored = {"initializer_range", "use_cache"}
    config = release()
    _places(config)[place][1][key] = {"of": "wrong type"}
    if key in ignored:
        assert isinstance(parse_arch(config), Arch)
    else:
        with pytest.raises(ConfigError) as caught:
            parse_arch(config)
        assert key in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (text(hidden_size=0), "hidden_size: expected an integer >= 1, found 0"),
        (text(hidden_size=True), "hidden_size: expected an integer >= 1, found True"),
        (text(hidden_size=5120.0), "hidden_size: expected an integer >= 1, found 5120.0"),
        (text(swiglu_limit=0), "swiglu_limit: expected a number > 0, found 0"),
        (text(rms_norm_eps=float("nan")), "rms_norm_eps: expected a number > 0, found nan"),
        (text(compress_ratios=[0, -1]), "compress_ratios: expected a list of integers >= 0"),
        (text(compress_ratios=[0] * 42), "compress_ratios has 42 entries"),
        (text(compress_ratios=[0] * 44), "40 layers and 3 draft stages need 43"),
        (text(compress_ratios=[0] * 2 + [4] * 38), "values [4] are not supported, only 0, 1, 2"),
        (
            text(compress_ratios=[0, 0] + [2] * 18 + [1] * 20 + [0, 0, 1]),
            "draft stages have no compressed branch",
        ),
        (text(o_groups=7), "num_attention_heads 64 is not a multiple of o_groups 7"),
        (text(hidden_size=5130), "hidden_size 5130 is not a multiple of 32"),
        (text(o_lora_rank=1), "o_groups x o_lora_rank = 8: no multiple of 32"),
        (text(qk_rope_head_dim=63), "qk_rope_head_dim 63: odd"),
        (text(qk_rope_head_dim=256), "wider than head_dim or index_head_dim"),
        (text(num_experts_per_tok=385), "num_experts_per_tok exceeds n_routed_experts"),
        (text(kv_source_layer_ids=[2, 14, 8, 20]), "kv_source_layer_ids [2, 14, 8, 20] is not asc"),
        (text(kv_source_layer_ids=[1, 2, 20]), "layers [1] have no compressed branch"),
        (text(kv_source_layer_ids=[8, 14, 20]), "layer 2 has no source at or below it"),
        (text(kv_source_layer_ids=[2, 8, 14]), "layer 20: ratio differs from its source 14"),
        (text(index_source_layer_ids=[2, 8, 20]), "layers [14] own entries but do not select"),
        (
            text(kv_source_layer_ids=[2, 20, 24]),
            "layers [24] lie above layer 20, where the decoder part begins",
        ),
        (
            text(compress_ratios=[0, 0] + [1] * 6 + [2] * 32),
            "a ratio-2 layer above the first ratio-1 layer",
        ),
        (text(candidate_source_layer_id=24), "candidate_source_layer_id 24 is no source"),
        (text(candidate_source_layer_id=21), "candidate_source_layer_id 21 is no source"),
        (text(engram_layer_ids=[1, 40]), "engram_layer_ids [1, 40]: no such layer"),
        (text(engram_layer_ids=[14, 1]), "engram_layer_ids [14, 1] is not ascending"),
        (text(engram_layer_ids=[1]), "engram_num_embeddings and engram_layer_ids differ"),
        (text(engram_head_dim=48), "engram_head_dim 48 is not a multiple of 32"),
        (text(engram_pad_token_id=129280), "engram_pad_token_id 129280 is not below vocab_size"),
        (text(dspark_target_layer_ids=[37, 40]), "dspark_target_layer_ids [37, 40]: no such"),
        (text(dspark_target_layer_ids=[]), "dspark_target_layer_ids []: no such layer"),
        (text(dspark_noise_token_id=129280), "dspark_noise_token_id 129280 is not below"),
        (text(dspark_num_experts_per_tok=129), "dspark_num_experts_per_tok exceeds"),
        (lambda config: config.update(eos_token_id=129280), "eos_token_id 129280 is not below"),
    ],
)
def test_each_contradiction_has_its_sentence(change: Change, words: str):
    assert words in faults(change)


@given(blocks=st.integers(1, 80), size=st.integers(1, 16), topk=st.integers(1, 80))
def test_candidate_blocks_must_always_hold_topk_visible_entries(blocks: int, size: int, topk: int):
    # The newest block may hold a single visible entry (D32).
    config = release()
    text(candidate_topk_blocks=blocks, candidate_block_size=size, index_topk=topk)(config)
    if blocks * size - (size - 1) >= topk:
        assert parse_arch(config).index_topk == topk
    else:
        with pytest.raises(ConfigError, match=f"fewer than index_topk {topk}"):
            parse_arch(config)


D59 = {
    "hc_shifted": (True, False),
    "use_fp4_sparse_kv": (True, False),
    "dspark_target_attn_input": (True, False),
    "gate_temp": (1.0, 0.5),
    "index_k_source_layer_ids": ([2, 8, 14, 20], [2, 8, 14]),
}


@pytest.mark.parametrize("key", D59)
def test_keys_of_one_source_are_accepted_with_the_only_supported_value(key: str):
    right, wrong = D59[key]
    config = release()
    config["text_config"][key] = right
    assert parse_arch(config) == parse_arch(release())
    assert f"text_config.{key}: {wrong!r} is not supported, only {right!r}" in faults(
        text(**{key: wrong})
    )


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("num_key_value_heads", 2),
        ("tie_word_embeddings", True),
        ("n_shared_experts", 2),
        ("scoring_func", "softmax"),
        ("norm_topk_prob", False),
        ("hidden_act", "gelu"),
    ],
)
def test_fixed_values_of_the_family_are_held(key: str, wrong: object):
    assert f"text_config.{key}: {wrong!r} is not supported" in faults(text(**{key: wrong}))


def test_another_quantisation_is_refused():
    message = faults(lambda c: c["quantization_config"].update(weight_block_size=[128, 128]))
    assert "quantization_config.weight_block_size: [128, 128] is not supported" in message


def test_engram_pad_id_is_an_alias():
    config = release()
    config["text_config"]["engram_pad_id"] = config["text_config"].pop("engram_pad_token_id")
    assert parse_arch(config) == parse_arch(release())


def test_both_spellings_of_the_pad_id_must_agree():
    def both(config: Json, value: int) -> None:
        config["text_config"]["engram_pad_id"] = value

    same = release()
    both(same, same["text_config"]["engram_pad_token_id"])
    assert parse_arch(same) == parse_arch(release())
    assert "engram_pad_id: 7 is not supported" in faults(lambda config: both(config, 7))


def test_several_faults_are_listed_at_once():
    def change(config: Json) -> None:
        config["text_config"].update(hidden_size="5120", typo_key=1)
        del config["text_config"]["head_dim"]
        config["quantization_config"]["expert_dtype"] = "fp8"

    message = faults(change)
    assert "4 problem(s)" in message
    for words in ("hidden_size", "typo_key", "'head_dim' is missing", "expert_dtype: 'fp8'"):
        assert words in message


def test_several_contradictions_are_listed_at_once():
    message = faults(text(o_groups=7, engram_head_dim=48, dspark_noise_token_id=10**6))
    assert all(w in message for w in ("o_groups 7", "engram_head_dim", "dspark_noise_token_id"))


def test_a_model_without_optional_parts_is_accepted():
    config = release()
    del config["vision_config"]
    text(engram_layer_ids=[], num_nextn_predict_layers=0)(config)
    config["text_config"]["compress_ratios"] = config["text_config"]["compress_ratios"][:40]
    arch = parse_arch(config)
    assert (arch.engram, arch.draft, arch.vision, arch.max_draft) == (None, None, None, 0)


@given(small_configs())
def test_reading_does_not_depend_on_key_order_or_the_file_round_trip(config: Json):
    turned = json.loads(json.dumps(config, sort_keys=True))
    assert parse_arch(turned) == parse_arch(config)
