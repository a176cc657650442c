import hashlib
import json
import lzma
from concurrent.futures import ThreadPoolExecutor

import pytest
from safetensors import safe_open

from deepinfer.arch import load_arch, tensor_specs
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import ConfigError
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.model.engram_map import EngramMap
from deepinfer.model.source import invalid_values, read
from deepinfer.nano import build
from deepinfer.nano.build import builtin_models, nano_directory, random_directory

FILES = [
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
]


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return random_directory(tmp_path_factory.mktemp("cache") / "made" / "on demand")


def digest(directory, pattern):
    total = hashlib.sha256()
    for file in sorted(directory.glob(pattern)):
        total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()


def test_the_files_are_those_of_a_checkpoint(nano):
    assert sorted(file.name for file in nano.iterdir()) == FILES
    assert 15e6 < sum(file.stat().st_size for file in nano.iterdir()) < 25e6


def test_head_geometry_is_that_of_the_release(nano):
    arch = load_arch(nano)
    assert (arch.head_dim, arch.qk_rope_head_dim, arch.index_head_dim) == (512, 64, 128)
    assert (arch.sliding_window, arch.ring_rows, arch.hc_mult) == (128, 140, 4)
    assert arch.draft is not None
    assert (arch.draft.stages, arch.draft.block_size) == (3, 5)


def test_every_kind_of_layer_occurs(nano):
    arch = load_arch(nano)
    assert {(layer.mode, layer.ratio) for layer in arch.layers} == {
        ("window", 0), ("full", 2), ("reuse", 2), ("full", 1), ("reindex", 1), ("reuse", 1),
    }  # fmt: skip
    assert [layer.index for layer in arch.layers if layer.engram is not None] == [1, 4]
    assert arch.candidate_source_layer_id == arch.boundary_layer == 5


@pytest.mark.golden
def test_the_config_has_every_key_of_the_golden_ones(nano, golden_dir):
    def keys(path):
        data = json.loads(path.read_text(encoding="utf-8"))
        parts = ["quantization_config", "text_config", "vision_config"]
        return [set(data), *(set(data[part]) for part in parts)]

    assert keys(nano / "config.json") == keys(golden_dir / "config-d/checkpoint/config.json")


def test_the_checkpoint_opens_and_its_weights_are_finite(nano):
    checkpoint = Checkpoint(nano, load_arch(nano))
    assert checkpoint.has_draft
    for spec in tensor_specs(load_arch(nano)):
        wrong = invalid_values(spec.dtype, read(checkpoint, spec.name))
        assert wrong is None or not wrong.any(), spec.name


def test_other_readers_of_the_format_can_read_it(nano):
    names = set()
    for file in nano.glob("*.safetensors"):
        with safe_open(file, "pt") as stored:
            names |= set(stored.keys())
    assert names == {spec.name for spec in tensor_specs(load_arch(nano))}


def test_tokenizer_and_config_fit_each_other(nano):
    arch = load_arch(nano)
    tokenizer = TextTokenizer(nano, arch)
    assert tokenizer.vocab_size == arch.vocab_size
    assert arch.engram is not None
    EngramMap.build(arch.engram, tokenizer.library, arch.vocab_size)
    assert tokenizer.encode("<｜begin▁of▁sentence｜>")[0] == arch.bos_token_id
    assert tokenizer.encode("<｜deepseek_image｜>") == [arch.image_token_id]
    assert arch.draft is not None
    assert tokenizer.encode("<｜place▁holder▁no▁799｜>") == [arch.draft.noise_token_id]
    described = json.loads((nano / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert tokenizer.encode(described["eos_token"]["content"]) == [arch.eos_token_id]


def test_a_built_model_is_left_as_it_is(nano, monkeypatch):
    monkeypatch.setattr(build, "_build", lambda directory: pytest.fail("built again"))
    assert random_directory(nano.parent) == nano


def test_building_again_elsewhere_gives_the_same_bytes(nano, tmp_path):
    assert digest(random_directory(tmp_path), "*") == digest(nano, "*")


def test_changed_weights_come_with_a_changed_version(nano):
    # A cache of an earlier run is reused by VERSION; raise it together with this digest.
    assert (build.VERSION, digest(nano, "*.safetensors")) == (
        1,
        "6db5dbe21270e34363c9c977d17681f2ad936e804ed1fb6cf376787151bc9f41",
    )


def test_a_changed_recipe_gets_another_directory(nano, monkeypatch):
    names = {nano.name}
    monkeypatch.setattr(build, "VERSION", build.VERSION + 1)
    names.add(f"nano-{build._key()}")
    monkeypatch.setattr(build, "SEED", build.SEED + 1)
    names.add(f"nano-{build._key()}")
    assert len(names) == 3


def test_several_builders_at_once_agree_on_one_directory(nano, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(random_directory, [tmp_path] * 4))
    assert found == set(tmp_path.iterdir())
    assert digest(found.pop(), "*") == digest(nano, "*")


def test_a_build_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(directory, *_):
        directory.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build, "write_checkpoint", fail)
    with pytest.raises(ConfigError, match="No space left.*DEEPINFER_CACHE_DIR"):
        random_directory(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_cache_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(ConfigError, match="cannot build the nano model in .*cache"):
        random_directory(tmp_path / "cache")


def test_nano_is_unpacked_once_and_holds_the_files_of_the_package(tmp_path):
    directory = nano_directory(tmp_path)
    assert nano_directory(tmp_path) == directory
    packed = {file.name: file.read_bytes() for file in build.TRAINED.iterdir()}
    for file in directory.iterdir():
        content = packed.pop(file.name, None)
        if content is None:
            content = lzma.decompress(packed.pop(file.name + ".xz"))
        assert file.read_bytes() == content
    assert not packed
    assert [found.name for found in tmp_path.iterdir()] == [directory.name]


def test_a_package_without_room_for_nano_says_so(tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(ConfigError, match="cannot build the nano model in .*cache"):
        nano_directory(tmp_path / "cache")


def test_the_random_model_keeps_a_name_of_its_own(nano):
    assert builtin_models(lambda: nano.parent)["nano-random"]() == nano
