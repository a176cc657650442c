import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

import deepinfer.model.checkpoint as checkpoint_module
from deepinfer.arch import load_arch
from deepinfer.errors import CheckpointError
from deepinfer.model.checkpoint import CHUNK_BYTES, INDEX_NAME, Checkpoint
from deepinfer.model.dummy import DummySource
from deepinfer.model.source import STORED_DTYPE, MemorySource, has_part, invalid_values, read
from deepinfer.model.writer import write_checkpoint
from tests.model.tiny import (
    ARCH,
    CONFIG,
    FIRST,
    SECOND,
    THIRD,
    one_problem,
    poke,
    problems,
    single_file,
    tiny_arch,
    tiny_config,
)

# What is there arrives unchanged.


@pytest.mark.golden
@pytest.mark.parametrize("name", ["config-a", "config-b", "config-d"])
def test_every_byte_of_a_golden_checkpoint_arrives(golden_dir, name):
    directory = golden_dir / name / "checkpoint"
    checkpoint = Checkpoint(directory, load_arch(directory))
    assert checkpoint.has_draft
    left = set(checkpoint.specs)
    for shard in sorted(directory.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            for tensor in file.keys():  # noqa: SIM118 - the library's object, no dict
                expected = file.get_tensor(tensor).contiguous().view(torch.uint8)
                assert torch.equal(read(checkpoint, tensor).view(torch.uint8), expected)
                left.discard(tensor)
    assert not left


@pytest.mark.golden
def test_the_fp8_and_fp4_bytes_are_those_of_the_file(golden_dir):
    directory = golden_dir / "config-a" / "checkpoint"
    checkpoint = Checkpoint(directory, load_arch(directory))
    weight = read(checkpoint, "layers.0.attn.wkv.weight")
    place = checkpoint.file_range("layers.0.attn.wkv.weight")
    with place.path.open("rb") as file:
        file.seek(place.offset)
        assert bytes(weight[0, :8].tolist()) == file.read(8)


def test_every_tensor_equals_what_was_written(pristine):
    checkpoint, source = Checkpoint(pristine, ARCH), DummySource(ARCH, 1)
    assert checkpoint.specs == source.specs
    for name in checkpoint.specs:
        assert torch.equal(read(checkpoint, name), read(source, name)), name


@given(st.integers(1, 5000), st.sampled_from(["embed.weight", "layers.1.engram.embed.weight"]))
def test_chunk_size_and_strides_change_nothing(pristine, chunk, name):
    checkpoint = Checkpoint(pristine, ARCH)
    spec = checkpoint.specs[name]
    dtype = STORED_DTYPE[spec.dtype]
    wide = torch.zeros(spec.shape[0], 2 * spec.shape[1], dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_module, "CHUNK_BYTES", chunk)
        contiguous = read(checkpoint, name)
        checkpoint.read_into(name, wide[:, 1::2])
    assert torch.equal(contiguous, read(DummySource(ARCH, 1), name))
    assert torch.equal(wide[:, 1::2], contiguous)
    assert not wide[:, ::2].any()


def test_progress_counts_every_byte_once(pristine):
    counts = []
    checkpoint = Checkpoint(pristine, ARCH, progress=counts.append)
    assert not counts  # opening reads no payload
    for name in checkpoint.specs:
        read(checkpoint, name)
    assert sum(counts) == sum(spec.bytes for spec in checkpoint.specs.values())


def test_opening_reads_no_payload(directory):
    poke(directory, "norm.weight", 0, b"\xff\xff")
    Checkpoint(directory, ARCH)


# Accepted variants.


def test_a_single_file_without_index_is_accepted(directory):
    single_file(directory)
    checkpoint = Checkpoint(directory, ARCH)
    assert torch.equal(read(checkpoint, "norm.weight"), read(DummySource(ARCH, 1), "norm.weight"))


def test_names_may_carry_the_model_prefix(directory):
    single_file(directory, lambda tensors: {f"model.{k}": v for k, v in tensors.items()})
    assert list(Checkpoint(directory, ARCH).specs) == list(DummySource(ARCH).specs)


def test_a_name_with_and_without_prefix_is_a_duplicate(directory):
    single_file(directory, lambda t: {**t, "model.norm.weight": t["norm.weight"]})
    assert one_problem(directory).startswith("norm.weight: stored 2 times")


def test_draft_stages_may_be_absent_as_a_whole(directory):
    drop = lambda t: {k: v for k, v in t.items() if not k.startswith("mtp.")}  # noqa: E731
    single_file(directory, drop)
    checkpoint = Checkpoint(directory, ARCH)
    assert not checkpoint.has_draft
    assert has_part(checkpoint, "engram")
    assert not any(name.startswith("mtp.") for name in checkpoint.specs)


def test_draft_stages_may_not_be_absent_in_part(directory):
    drop = lambda t: {k: v for k, v in t.items() if not k.startswith("mtp.0.")}  # noqa: E731
    single_file(directory, drop)
    found = problems(directory)
    assert set(found) == {
        f"{name}: missing" for name in DummySource(ARCH).specs if "mtp.0." in name
    }


def test_the_engram_table_may_not_be_absent(directory):
    single_file(directory, lambda t: {k: v for k, v in t.items() if "engram.embed" not in k})
    assert set(problems(directory)) == {
        f"layers.1.engram.embed.{kind}: missing" for kind in ("weight", "scale")
    }


@pytest.mark.parametrize(
    "config",
    [
        tiny_config(vision_layers=0),
        tiny_config(engram_layer_ids=[], engram_num_embeddings=[]),
        tiny_config(num_nextn_predict_layers=0, compress_ratios=[0, 2, 1, 1]),
    ],
    ids=["no vision", "no Engram", "no drafter"],
)
def test_configs_without_optional_parts_are_accepted(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    arch = load_arch(tmp_path)
    write_checkpoint(tmp_path / "out", arch, DummySource(arch), config)
    assert Checkpoint(tmp_path / "out", arch).specs == DummySource(arch).specs


def test_vision_tensors_of_a_config_without_vision_are_left_alone(pristine):
    arch = tiny_arch(vision_layers=0)
    assert not has_part(Checkpoint(pristine, arch), "vision")


def test_a_shard_of_parts_nobody_asked_for_may_be_absent(tmp_path):
    count = len(DummySource(ARCH).specs)
    write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH), CONFIG, count)
    index = json.loads((tmp_path / "out" / INDEX_NAME).read_text())["weight_map"]
    (tmp_path / "out" / index["vision.norm.weight"]).unlink()
    assert "shard missing" in one_problem(tmp_path / "out")
    text = Checkpoint(tmp_path / "out", ARCH, parts=("embedding", "backbone"))
    assert {spec.part for spec in text.specs.values()} == {"embedding", "backbone"}


def test_shards_may_be_links_into_a_hub_cache(directory, tmp_path):
    (tmp_path / "blobs").mkdir()
    (directory / FIRST).rename(tmp_path / "blobs" / "blob")
    (directory / FIRST).symlink_to("../blobs/blob")
    assert Checkpoint(directory, ARCH).specs


# Refused: what the payload holds.


@pytest.mark.parametrize(
    ("name", "position", "value", "index", "what"),
    [
        ("embed.weight", 130, b"\xc0\x7f", [1, 1], "NaN"),
        ("embed.weight", 0, b"\x80\xff", [0, 0], "NaN"),
        ("layers.0.attn.attn_sink", 8, b"\0\0\x80\x7f", [2], "NaN"),
        ("layers.0.attn.wkv.weight", 64 * 3 + 5, b"\x7f", [3, 5], "NaN"),
        ("layers.1.engram.embed.weight", 64 * 210 + 63, b"\xff", [210, 63], "NaN"),
        ("layers.1.engram.embed.scale", 2 * 7 + 1, b"\xff", [7, 1], "scale bytes 255"),
        ("layers.2.ffn.experts.1.w2.scale", 5, b"\xff", [5, 0], "scale bytes 255"),
    ],
)
def test_a_planted_fault_is_named(directory, name, position, value, index, what):
    poke(directory, name, position, value)
    checkpoint = Checkpoint(directory, ARCH)
    with pytest.raises(CheckpointError) as caught:
        read(checkpoint, name)
    [problem] = caught.value.problems
    assert problem.startswith(f"{name}: 1 {what}")
    assert f"index {index};" in problem
    others = [other for other in checkpoint.specs if other != name]
    for other in others:
        read(checkpoint, other)


def test_faults_are_counted_over_all_chunks(directory, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "CHUNK_BYTES", 256)
    for position in (5000, 5002, 12000):
        poke(directory, "embed.weight", position, b"\xc0\x7f")
    with pytest.raises(CheckpointError, match=r"embed.weight: 3 NaN.* index \[39, 4\]"):
        read(Checkpoint(directory, ARCH), "embed.weight")


def test_a_file_that_shrinks_after_opening_is_noticed(directory):
    checkpoint = Checkpoint(directory, ARCH)
    os.truncate(directory / FIRST, 100)
    with pytest.raises(CheckpointError, match="ended early"):
        read(checkpoint, "embed.weight")


def equal(mask, expected):
    return mask is not None and torch.equal(mask, expected)


def test_unusable_codes_are_exactly_the_nan_codes():
    codes = torch.arange(256, dtype=torch.uint8)
    nan = codes.view(torch.float8_e4m3fn).float().isnan()
    assert equal(invalid_values("F8_E4M3", codes), nan)
    assert equal(invalid_values("F8_E8M0", codes), codes == 255)
    assert invalid_values("I8", codes) is None
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    assert equal(invalid_values("BF16", halves), ~halves.isfinite())
    assert equal(invalid_values("F32", halves.float()), ~halves.isfinite())


# Other sources.


def test_tensors_in_memory_are_held_to_the_same_rules():
    tensors = {name: read(DummySource(ARCH), name) for name in DummySource(ARCH).specs}
    source = MemorySource(ARCH, tensors)
    assert all(torch.equal(read(source, name), tensor) for name, tensor in tensors.items())
    bad = {**tensors, "x": torch.zeros(1), "norm.weight": torch.zeros(64)}
    del bad["embed.weight"]
    with pytest.raises(CheckpointError) as caught:
        MemorySource(ARCH, bad)
    assert {problem.split(":")[0] for problem in caught.value.problems} == {
        "x",
        "norm.weight",
        "embed.weight",
    }
    tensors["norm.weight"][3] = float("nan")
    with pytest.raises(CheckpointError, match=r"norm.weight: 1 NaN.*\[3\]"):
        read(source, "norm.weight")


LOADER = """
import sys
from pathlib import Path
from deepinfer.arch import load_arch
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.model.source import read

def kib(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

checkpoint = Checkpoint(sys.argv[1], load_arch(sys.argv[1]))
read(checkpoint, "norm.weight")
before = kib("VmRSS")
kept = [read(checkpoint, name) for name in checkpoint.specs]
print(kib("VmHWM") - before, sum(tensor.nbytes for tensor in kept))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_loading_needs_the_resident_weights_and_a_tenth(tmp_path):
    config = tiny_config(vocab_size=600_000, hidden_size=128)
    (tmp_path / "config.json").write_text(json.dumps(config))
    arch = load_arch(tmp_path)
    write_checkpoint(tmp_path / "out", arch, DummySource(arch), config, 2)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    grown_kib, resident = map(int, done.stdout.split())
    assert resident > 350 << 20
    assert resident * 0.9 < grown_kib * 1024 <= resident * 1.1 + CHUNK_BYTES


@pytest.mark.gpu
def test_a_device_tensor_gets_the_same_bytes_and_checks(directory, gpu):
    checkpoint = Checkpoint(directory, ARCH)
    for name in checkpoint.specs:
        assert torch.equal(read(checkpoint, name, gpu.device).cpu(), read(checkpoint, name))
    poke(directory, "embed.weight", 130, b"\xc0\x7f")
    with pytest.raises(CheckpointError, match=r"index \[1, 1\]"):
        read(checkpoint, "embed.weight", gpu.device)


def test_the_reference_library_reads_the_same_values(pristine):
    checkpoint = Checkpoint(pristine, ARCH)
    for shard in (FIRST, SECOND, THIRD):
        for name, tensor in load_file(pristine / shard).items():
            assert torch.equal(read(checkpoint, name).view(torch.uint8), tensor.view(torch.uint8))
