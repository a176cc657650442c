"""Requests behind one text: what is a hit, what is accepted, and what the command asks for."""

import json

import pytest

from deepinfer.bench import shared
from deepinfer.bench.shared import Load
from deepinfer.cli import main
from deepinfer.device import find_device
from deepinfer.engine.build import load
from deepinfer.engine.options import EngineOptions
from deepinfer.errors import ConfigError
from deepinfer.nano.build import random_directory


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    directory = random_directory(tmp_path_factory.mktemp("cache"))
    return load(directory, find_device("cpu"), EngineOptions(device="cpu"))


@pytest.mark.parametrize("drafts", [0, 2])
def test_the_shared_text_is_a_hit_and_what_is_behind_it_is_not(network, capsys, drafts):
    asked = Load(length=420, uncached=164, output=5, drafts=drafts, cache_bytes=64 << 20)
    [record] = shared.run(network, "nano-random", [2], asked, json=True)
    assert json.loads(capsys.readouterr().out) == record
    assert record["hit_rate"] == pytest.approx(256 / 420)
    assert (record["hit_rate_is"], record["model"]) == ("real", "nano-random")
    assert (record["acceptance"] is None) == (not drafts)
    assert record["decode_steps"] >= 1
    assert record["prompt_steps"] >= 1
    assert record["first_token_seconds"] > 0


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (
            {"length": 100, "uncached": 100},
            "uncached 100: use 1 or more, less than the length, 100",
        ),
        ({"output": 0}, "output 0"),
        ({"drafts": -1}, "drafts -1"),
    ],
)
def test_loads_that_make_no_sense_are_refused(sizes, says):
    with pytest.raises(ConfigError, match=says):
        Load(**sizes)


def test_the_command_passes_on_what_is_asked_for(monkeypatch):
    monkeypatch.setattr("deepinfer.bench.subject.rates", lambda device: None)
    seen = []
    monkeypatch.setattr(shared, "run", lambda *args, **other: seen.append((args, other)) or [])
    line = "bench shared --model nano-random --device cpu --batch 3 --length 512 --uncached 100"
    assert main([*line.split(), "--output-tokens", "7", "--drafts", "1", "--json"]) == 0
    [((_, name, rows, asked), other)] = seen
    assert (name, rows, other) == ("nano-random", (3,), {"json": True})
    assert asked == Load(length=512, uncached=100, output=7, drafts=1)
