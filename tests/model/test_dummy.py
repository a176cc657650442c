import hashlib
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deepinfer.model.dummy as dummy_module
from deepinfer.arch import load_arch
from deepinfer.model.dummy import DummySource
from deepinfer.model.source import STORED_DTYPE, invalid_values, read
from tests.model.tiny import tiny_arch

ARCH = tiny_arch()
NAMES = sorted(DummySource(ARCH).specs)
MASK = (1 << 64) - 1


def word(seed, name, index):
    """Word number `index` of a tensor, in Python integers."""
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little")
    x = (index * 0x9E3779B97F4A7C15 + key) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@given(st.integers(0, 1 << 40), st.integers(-5, 5), st.integers(1, 20))
def test_words_are_those_of_exact_integer_arithmetic(first, seed, count):
    key = dummy_module._key(seed, "x")
    words = dummy_module._words(key, first, count, torch.device("cpu"))
    assert [w & MASK for w in words.tolist()] == [word(seed, "x", first + i) for i in range(count)]


def test_bytes_and_normal_values_follow_from_the_words():
    source = DummySource(ARCH, 4)
    packed = read(source, "layers.0.ffn.experts.0.w1.weight").flatten()
    assert packed[:16].tolist() == [
        b
        for i in (0, 1)
        for b in word(4, "layers.0.ffn.experts.0.w1.weight", i).to_bytes(8, "little")
    ]
    quarters = word(4, "layers.0.attn.attn_sink", 2).to_bytes(8, "little")
    total = sum(int.from_bytes(quarters[i : i + 2], "little", signed=True) for i in (0, 2, 4, 6))
    sink = read(source, "layers.0.attn.attn_sink")
    assert sink[2].item() == torch.tensor(total + 2.0).mul(1 / 37837.2).item()


@given(st.integers(1, 700), st.sampled_from(NAMES))
def test_chunk_size_changes_nothing(words, name):
    source = DummySource(ARCH, 7)
    whole = read(source, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dummy_module, "CHUNK_WORDS", words)
        assert torch.equal(read(source, name), whole)


def test_strided_destinations_get_the_same_values():
    source = DummySource(ARCH, 7)
    for name in ("embed.weight", "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"):
        spec = source.specs[name]
        shape = (spec.shape[1], spec.shape[0])
        turned = torch.empty(shape, dtype=STORED_DTYPE[spec.dtype])
        source.read_into(name, turned.t())
        assert torch.equal(turned.t(), read(source, name))


def test_seed_and_name_decide_everything():
    same = [read(DummySource(ARCH, 3), "layers.0.attn.wkv.weight") for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], read(DummySource(ARCH, 4), "layers.0.attn.wkv.weight"))
    assert not torch.equal(same[0], read(DummySource(ARCH, 3), "mtp.0.attn.wkv.weight"))


@given(st.integers())
def test_no_value_is_one_that_a_checkpoint_may_not_hold(seed):
    source = DummySource(ARCH, seed)
    for name, spec in source.specs.items():
        bad = invalid_values(spec.dtype, read(source, name))
        assert bad is None or not bad.any(), name


FP4 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])


def decoded(source, name):
    """Values of a tensor, its scales applied."""
    spec, stored = source.specs[name], read(source, name)
    if spec.dtype in ("BF16", "F32"):
        return stored.float()
    scale = torch.exp2(read(source, name.removesuffix("weight") + "scale").float() - 127)
    if spec.dtype == "I8":
        codes = torch.stack((stored & 15, stored >> 4), dim=-1).flatten(-2).int()
        values = FP4[codes & 7] * (1 - 2 * (codes >> 3))
        return values * scale.repeat_interleave(32, dim=1)
    values = stored.view(torch.float8_e4m3fn).float()
    rows = 1 if "engram.embed" in name else 32
    return values * scale.repeat_interleave(rows, 0).repeat_interleave(32, 1)


def statistics(source, suffix):
    values = torch.cat(
        [
            decoded(source, name).flatten()
            for name, spec in source.specs.items()
            if name.endswith(suffix) and spec.dtype != "F8_E8M0" and spec.part != "vision"
        ]
    )
    return values.mean().item(), values.std().item()


@pytest.mark.parametrize(
    ("suffix", "inner"),
    [
        ("attn.wq_a.weight", 64),
        ("w1.weight", 64),
        ("attn.wq_b.weight", 32),
        ("main_proj.weight", 128),
    ],
)
def test_matrices_keep_the_size_of_their_input(suffix, inner):
    mean, std = statistics(DummySource(ARCH, 1), suffix)
    assert abs(mean) < 0.2 * std
    assert 0.6 < std * math.sqrt(inner) < 1.6


def test_norm_weights_lie_near_one_and_sinks_near_zero():
    source = DummySource(ARCH, 1)
    mean, std = statistics(source, "norm.weight")
    assert mean == pytest.approx(1, abs=0.02)
    assert std == pytest.approx(0.2, rel=0.1)
    mean, std = statistics(source, "attn_sink")
    assert abs(mean) < 0.7
    assert 0.5 < std < 1.5


@pytest.mark.golden
def test_statistics_are_those_of_the_golden_checkpoints_within_a_factor(golden_dir):
    from deepinfer.model.checkpoint import Checkpoint

    directory = golden_dir / "config-a" / "checkpoint"
    arch = load_arch(directory)
    golden, dummy = Checkpoint(directory, arch), DummySource(arch, 5)
    endings = {re.sub(r".*\d", "", name) for name in dummy.specs}
    for suffix in sorted(ending for ending in endings if not ending.endswith(".scale")):
        mean, std = statistics(dummy, suffix)
        wanted_mean, wanted_std = statistics(golden, suffix)
        assert 0.4 < std / wanted_std < 2.5, suffix
        assert abs(mean - wanted_mean) < 0.35, suffix


@pytest.mark.gpu
def test_a_device_makes_the_same_bits(gpu):
    source = DummySource(ARCH, 11)
    for name in source.specs:
        there = read(source, name, gpu.device).cpu()
        assert torch.equal(there, read(source, name)), name


@pytest.mark.gpu
def test_a_device_makes_the_same_bits_beyond_32_bit_indices(gpu):
    key = dummy_module._key(0, "x")
    for first in ((1 << 31) - 5, (1 << 37) + 3):
        there = dummy_module._words(key, first, 1000, gpu.device).cpu()
        assert torch.equal(there, dummy_module._words(key, first, 1000, torch.device("cpu")))
