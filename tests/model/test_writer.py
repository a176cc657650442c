import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import deepinfer.model.writer as writer_module
from deepinfer.arch import load_arch
from deepinfer.errors import CheckpointError, ConfigError
from deepinfer.model.checkpoint import INDEX_NAME, Checkpoint
from deepinfer.model.dummy import DummySource
from deepinfer.model.shard import read_header
from deepinfer.model.source import read
from deepinfer.model.writer import write_checkpoint
from tests.model.tiny import tiny_arch, tiny_config

CONFIG, ARCH = tiny_config(), tiny_arch()
SPECS = DummySource(ARCH).specs


def in_memory(seed=0):
    return {name: read(DummySource(ARCH, seed), name) for name in SPECS}


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_the_safetensors_library_reads_what_is_written(tmp_path, shards):
    write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH, 9), CONFIG, shards)
    index = json.loads((tmp_path / "out" / INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == sum(spec.bytes for spec in SPECS.values())
    assert set(index["weight_map"]) == set(SPECS)
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{i:05d}-of-{shards:05d}.safetensors" for i in range(1, shards + 1)]
    for name in files:
        with safe_open(tmp_path / "out" / name, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            for tensor in file.keys():  # noqa: SIM118 - the library's object, no dict
                assert index["weight_map"][tensor] == name
                found = file.get_tensor(tensor)
                assert file.get_slice(tensor).get_dtype() == SPECS[tensor].dtype
                expected = read(DummySource(ARCH, 9), tensor)
                assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert load_arch(tmp_path / "out") == ARCH


def test_a_dictionary_of_tensors_is_as_good_as_a_source(tmp_path):
    write_checkpoint(tmp_path / "a", ARCH, in_memory(), CONFIG, 2)
    write_checkpoint(tmp_path / "b", ARCH, DummySource(ARCH), CONFIG, 2)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_copying_a_checkpoint_reproduces_it_byte_for_byte(tmp_path):
    write_checkpoint(tmp_path / "a", ARCH, DummySource(ARCH), CONFIG, 3)
    write_checkpoint(tmp_path / "b", ARCH, Checkpoint(tmp_path / "a", ARCH), CONFIG, 3)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_every_tensor_is_aligned_to_its_items(tmp_path):
    write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH), CONFIG, 4)
    sizes = {"F32": 4, "BF16": 2}
    for path in (tmp_path / "out").glob("*.safetensors"):
        entries = read_header(path).values()
        assert min(entry.offset for entry in entries) % 8 == 0
        assert all(entry.offset % sizes.get(entry.dtype, 1) == 0 for entry in entries)


@given(st.integers(1, len(SPECS)))
def test_shards_are_contiguous_and_about_equal(shards):
    specs = list(SPECS.values())
    runs = writer_module._split(specs, shards)
    assert len(runs) == shards
    assert all(runs)
    assert [spec for run in runs for spec in run] == specs
    if shards <= 8:
        share = sum(spec.bytes for spec in specs) / shards
        largest = max(spec.bytes for spec in specs)
        assert max(sum(spec.bytes for spec in run) for run in runs) <= share + largest


@pytest.mark.parametrize("shards", [0, -1, len(SPECS) + 1])
def test_an_impossible_number_of_shards_is_refused(tmp_path, shards):
    with pytest.raises(ValueError, match="shards="):
        write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH), CONFIG, shards)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_without_draft_stages_can_be_written(tmp_path):
    tensors = {k: v for k, v in in_memory().items() if not k.startswith("mtp.")}
    write_checkpoint(tmp_path / "out", ARCH, tensors, CONFIG)
    assert not Checkpoint(tmp_path / "out", ARCH).has_draft


def test_a_config_of_another_architecture_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="another architecture"):
        write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH), tiny_config(hc_mult=4))
    with pytest.raises(ConfigError):
        write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH), {"model_type": "other"})


def test_a_directory_in_use_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty"):
        write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH), CONFIG)
    assert (tmp_path / "out" / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    tensors = in_memory()
    tensors["head.weight"][5, 1] = float("inf")
    with pytest.raises(CheckpointError, match=r"head.weight: 1 NaN or infinite.*\[5, 1\]"):
        write_checkpoint(tmp_path / "out", ARCH, tensors, CONFIG, 3)
    assert not list(tmp_path.iterdir())
