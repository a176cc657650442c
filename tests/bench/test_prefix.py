"""The measurement of replay and the prefix cache: what it runs, reports and refuses."""

import json

import pytest

from deepinfer.bench import prefix
from deepinfer.cli import main
from deepinfer.engine.llm import LLM
from deepinfer.errors import ConfigError
from deepinfer.nano.build import nano_directory


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return nano_directory(tmp_path_factory.mktemp("cache"))


def test_hashing_costs_little_a_token():
    assert 0 < prefix.hashing_us(list(range(1280))) < 0.3  # the mark is 0.03 on a quiet machine


def test_every_case_is_measured_on_the_engine_that_it_names(model, monkeypatch, capsys):
    """600 tokens: an exact replay needs 5 x 127 rows, so only the others save anything."""
    monkeypatch.setattr(prefix, "_SHORT", 0)
    seen = []
    honest = LLM.generate

    def generate(self, *args, **kwargs):
        outputs = honest(self, *args, **kwargs)
        options = self.options
        seen.append((options.decoder_replay, options.deterministic, outputs[0].num_cached_tokens))
        return outputs

    monkeypatch.setattr(LLM, "generate", generate)
    records = prefix.run(model, [700], json=True)
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
        ("compact", True, 0),  # warm-up
        ("off", True, 0),
        *[("compact", True, 0), ("compact", True, 512)],
        *[("compact", True, 0), ("compact", True, 0)],
        *[("compact", False, 0), ("compact", False, 500)],
    ]
    for record in records[1:]:
        ratio = record["before_seconds"] / record["after_seconds"]
        assert record["ratio"] == pytest.approx(ratio, rel=0.02)
        assert record["threads"] >= 1


def test_lengths_that_leave_no_full_page_are_refused(model, capsys):
    with pytest.raises(ConfigError, match="above 128"):
        prefix.run(model, [128])
    assert main(["bench", "prefix", "--prompts", "many"]) == 2
    assert "--prompts many" in capsys.readouterr().err
