"""The tensor list: the published counts and totals, and the golden checkpoints."""

import json
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given

from deepinfer.arch import Arch, load_arch, tensor_specs
from tests.arch.configs import release_arch, small_archs


def test_tensor_counts_of_the_release():
    # model.md 11.1: layers 0-19 without their Engram, layers 20-39, draft stages.
    counts = Counter[str]()
    for spec in tensor_specs(release_arch()):
        first, _, rest = spec.name.partition(".")
        if ".engram." in spec.name:
            first = "engram"
        elif first == "layers":
            first += " low" if int(rest.split(".")[0]) < 20 else " high"
        counts[first] += 1
    assert counts["layers low"] == 46_704
    assert counts["layers high"] == 46_699
    assert counts["mtp"] == 2_401
    assert counts["engram"] == 12
    assert counts["embed"] == counts["norm"] == counts["head"] == 1


def test_byte_totals_of_the_release_by_dtype():
    totals = Counter[str]()
    for spec in tensor_specs(release_arch()):
        totals[spec.dtype] += spec.bytes
    assert dict(totals) == {
        "BF16": 3_952_883_712,
        "F32": 169_229_128,
        "F8_E4M3": 204_015_223_296,
        "F8_E8M0": 23_563_015_184,
        "I8": 278_585_671_680,
    }
    assert totals.total() == 510_286_023_000


def test_parameters_of_the_release_by_part():
    # model.md 15.1; there the backbone includes the embedding and the head.
    params = Counter[str]()
    for spec in tensor_specs(release_arch()):
        params[spec.part] += spec.params
    assert params["embedding"] + params["backbone"] == 551_880_835_184
    assert params["engram"] == 196_613_849_600
    assert params["draft"] == 14_225_362_530
    assert params["vision"] == 485_268_480
    assert params.total() == 763_205_315_794


def test_vision_bytes_of_the_release():
    specs = tensor_specs(release_arch())
    assert sum(spec.bytes for spec in specs if spec.part == "vision") == 970_536_960


@given(small_archs)
def test_names_are_unique_and_each_scale_follows_its_weight(arch: Arch):
    specs = {spec.name: spec for spec in tensor_specs(arch)}
    assert len(specs) == len(tensor_specs(arch))
    scales = [spec for spec in specs.values() if spec.dtype == "F8_E8M0"]
    quantised = [spec for spec in specs.values() if spec.dtype in ("F8_E4M3", "I8")]
    assert len(scales) == len(quantised)
    for scale in scales:
        weight = specs[scale.name.removesuffix("scale") + "weight"]
        rows, columns = weight.shape
        if weight.dtype == "I8":
            assert scale.shape == (rows, columns * 2 // 32)
        elif ".engram.embed." in weight.name:
            assert scale.shape == (rows, columns // 32)
        else:
            assert scale.shape == (-(-rows // 32), -(-columns // 32))


@given(small_archs)
def test_parts_that_the_config_leaves_out_have_no_tensors(arch: Arch):
    parts = {spec.part for spec in tensor_specs(arch)}
    assert ("engram" in parts) == (arch.engram is not None)
    assert ("draft" in parts) == (arch.draft is not None)
    assert ("vision" in parts) == (arch.vision is not None)


@pytest.mark.golden
@pytest.mark.parametrize("config", ["config-a", "config-b", "config-d"])
def test_the_list_is_that_of_the_golden_checkpoint(golden_dir: Path, config: str):
    directory = golden_dir / config / "checkpoint"
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as handle:
            (size,) = struct.unpack("<Q", handle.read(8))
            header = json.loads(handle.read(size))
        header.pop("__metadata__", None)
        stored |= {name: (item["dtype"], tuple(item["shape"])) for name, item in header.items()}
    listed = {spec.name: (spec.dtype, spec.shape) for spec in tensor_specs(load_arch(directory))}
    assert listed == stored
