"""The measurement of replay and the prefix cache: what it runs, reports and refuses."""

import json

import pytest

from deepinfer.bench import prefix
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


def test_hashing_costs_little_a_token():
    assert 0 < prefix.hashing_us(list(range(1280))) < 0.3  # the mark is 0.03 on a quiet machine


def test_every_case_is_measured_on_the_engine_that_it_names(network, monkeypatch, capsys):
    """700 tokens: an exact replay needs 5 x 127 rows, so only the others save anything."""
    monkeypatch.setattr(prefix, "_SHORT", 0)
    seen = []
    honest = prefix.Prompts.first_token

    def first_token(self, engine, prompt):
        seconds, cached = honest(self, engine, prompt)
        limits = self._services[engine].core.scheduler.limits
        exact = None if limits.caching is None else limits.caching.exact
        seen.append((engine, limits.decoder_keep, exact, cached))
        return seconds, cached

    monkeypatch.setattr(prefix.Prompts, "first_token", first_token)
    records = prefix.run(network, "nano", [700], json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == records
    found = {record["name"]: record for record in records}
    assert list(found) == ["hashing", "compact 700", "hit 700", "exact hit 700", "bounded hit 700"]
    # Five pages are full; a snapshot holds the windows at 512 <= 700 - 140, the exact replay
    # starts 635 rows before the decoder's first one, the bounded one 140 before the hit.
    assert found["hit 700"]["cached_tokens"] == 512
    assert found["exact hit 700"]["cached_tokens"] == 0
    assert found["bounded hit 700"]["cached_tokens"] == 640 - 140
    assert seen == [
        ("snapshot", 140, True, 0),  # warm-up
        ("off", None, None, 0),
        *[("snapshot", 140, True, 0), ("snapshot", 140, True, 512)],
        *[("exact", 140, True, 0), ("exact", 140, True, 0)],
        *[("bounded", 140, False, 0), ("bounded", 140, False, 500)],
    ]
    for record in records[1:]:
        ratio = record["before_seconds"] / record["after_seconds"]
        assert record["ratio"] == pytest.approx(ratio, rel=0.02)
        assert (record["model"], record["device"]) == ("nano", "CPU")
        assert record["threads"] >= 1


def test_lengths_that_leave_no_full_page_are_refused(network, capsys):
    with pytest.raises(ConfigError, match="above 128"):
        prefix.run(network, "nano", [128])
    assert main(["bench", "prefix", "--prompts", "many"]) == 2
    assert "--prompts many" in capsys.readouterr().err
