"""Options of sharing and replay as numbers of the release, against those of the papers."""

import dataclasses
import json
from pathlib import Path

import pytest

from deepinfer.arch import Records, parse_arch
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.sharing import caching, decoder_rows, draft_tokens, fingerprint
from deepinfer.errors import ConfigError
from deepinfer.model.block import Block
from deepinfer.model.numerics import CHECKPOINT
from tests.model.networks import network

RELEASE = Path(__file__).parents[1] / "golden_data" / "release" / "config.json"
ARCH = parse_arch(json.loads(RELEASE.read_text()))


def records() -> Records:
    small = network()
    return Block(ARCH, small.ops, CHECKPOINT).records


def options(**changes):
    return dataclasses.replace(EngineOptions(), **changes)


@pytest.mark.parametrize(
    ("mode", "rows"), [("off", None), ("compact", 140), ("mask", 140), ("exact", 2541)]
)
def test_prompt_rows_that_run_the_decoder_layers(mode, rows):
    assert decoder_rows(ARCH, options(decoder_replay=mode)) == rows


def test_a_replay_is_exact_over_the_encoder_or_over_all_layers():
    found = caching(ARCH, records(), options(), b"model")
    assert found is not None
    assert (found.replay, found.exact) == (20 * 127, True)
    assert found.snapshots == (256 << 20) // (20 * 128 * 528)
    whole = caching(ARCH, records(), options(decoder_replay="off"), b"model")
    assert whole is not None
    assert (whole.replay, whole.snapshots) == (40 * 127, 0)
    bounded = caching(ARCH, records(), options(deterministic=False), b"model")
    assert bounded is not None
    assert (bounded.replay, bounded.exact) == (140, False)
    assert caching(ARCH, records(), options(enable_prefix_caching=False), b"model") is None


def test_semantics_and_models_never_share_a_page():
    firsts = {
        caching(ARCH, records(), wish, model).first_key  # pyright: ignore[reportOptionalMemberAccess]
        for wish in (options(), options(deterministic=False))
        for model in (b"one", b"other")
    }
    assert len(firsts) == 4


def test_drafts_are_bounded_by_the_block():
    assert draft_tokens(ARCH, options(speculative_config={"num_speculative_tokens": 5})) == 5
    with pytest.raises(ConfigError, match="proposes 5"):
        draft_tokens(ARCH, options(speculative_config={"num_speculative_tokens": 6}))


def test_a_fingerprint_changes_with_config_shards_and_ways_to_load(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(b"a" * 100)
    seen = [fingerprint(tmp_path, options())]
    shard.write_bytes(b"a" * 99 + b"b")
    seen.append(fingerprint(tmp_path, options()))
    (tmp_path / "config.json").write_text("{ }")
    seen.append(fingerprint(tmp_path, options()))
    seen.append(fingerprint(tmp_path, options(numerics="noquant")))
    seen.append(fingerprint(tmp_path, options(load_format="dummy")))
    seen.append(fingerprint(tmp_path, options(load_format="dummy", seed=1)))
    assert len(set(seen)) == len(seen)
    assert fingerprint(tmp_path, options()) == seen[2]
