"""The engine beside eager references: equal bits give equal tokens, and differences are seen."""

import json
from dataclasses import replace
from typing import Any

import pytest

from deepinfer.bench import end_to_end
from deepinfer.bench.end_to_end import Job, Served, mini_arch
from deepinfer.cli import main
from deepinfer.device import find_device
from deepinfer.errors import ConfigError

SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "q_lora_rank": 32,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "o_lora_rank": 16,
    "o_groups": 2,
    "index_head_dim": 32,
    "index_n_heads": 2,
    "engram_compressed_vocab_size": 200,
    "engram_vocab_size": 40,
    "engram_n_heads": 2,
    "engram_head_dim": 64,
}
CPU = find_device("cpu")
JOB = Job(2, prompt=20, output=5, warm=0)


def test_the_mini_model_has_every_kind_of_layer():
    arch = mini_arch()
    assert {layer.mode for layer in arch.layers} == {"window", "full", "reindex", "reuse"}
    assert arch.engram is not None
    for size in (arch.hidden_size, arch.moe_intermediate_size, arch.q_lora_rank, arch.o_lora_rank):
        assert size % 128 == 0


def test_equal_bits_give_equal_tokens():
    record = end_to_end.measure(mini_arch(**SMALL), CPU, JOB, {"*": "reference"})
    assert record["equal"]
    assert record["repeats_equal"]
    assert record["requests_equal_to_the_end"] == 2
    assert record["largest_gap_at_a_difference"] == 0.0
    assert record["output"] == 5
    ratio = record["tokens_per_second"] / record["eager_tokens_per_second"]
    assert record["ratio"] == pytest.approx(ratio)
    assert record["eager_seconds_are"] == "measured"
    assert set(record["operations"].values()) == {"reference"}


def test_shaken_references_say_what_is_to_be_expected():
    record = end_to_end.measure(
        mini_arch(**SMALL), CPU, replace(JOB, output=6, shaken=4), {"*": "reference"}
    )
    assert record["equal"]
    assert record["behind_equal"] == 1.0
    assert 0 <= record["behind_equal_expected"] <= 1.0
    assert record["as_expected"]


def test_the_hit_rate_is_that_of_the_prefix_cache():
    job = Job(1, prompt=270, output=7, warm=0, eager=6)
    record = end_to_end.measure(mini_arch(**SMALL), CPU, job, {"*": "reference"})
    assert (record["hit_rate"], record["hit_rate_is"]) == (0.0, "real")
    assert record["again_hit_rate"] == pytest.approx(128 / 270)
    assert record["again_equal"]
    assert record["equal"]
    assert record["eager_seconds_are"].startswith("6 of 7 tokens measured")


def test_tokens_that_the_references_did_not_generate_count_as_steps_of_the_others():
    answers: list[Any] = [None, None]
    steps = [(5.0, 1), (3.0, 2), (1.0, 2), (1.1, 2), (1.2, 2), (1.1, 2), (0.5, 1)]
    served = Served(12.9, answers, steps)
    job = Job(2, prompt=20, output=106, eager=6)
    found = end_to_end._eager_seconds(served, job)
    assert found["eager_seconds"] == pytest.approx(12.9 + 100 * 1.1)
    assert found["eager_step_ms"] == pytest.approx(1100)
    assert found["eager_step_spread"] == pytest.approx(0.1 / 1.1)
    with pytest.raises(ConfigError, match="3 steps"):
        end_to_end._eager_seconds(Served(9.0, answers, steps[:5]), job)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"requests": 0}, "0 requests"),
        ({"requests": 1, "output": 5, "eager": 6}, "1 to the output tokens, 5"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(sizes, says):
    with pytest.raises(ConfigError, match=says):
        Job(**sizes)


def test_the_command_serves_batches(capsys, monkeypatch):
    seen = []

    def measure(arch, device, job, ops):
        seen.append((job.requests, job.output, job.eager, job.shaken, ops))
        return {"name": f"end to end rows {job.requests}", "ratio": 30.0}

    monkeypatch.setattr(end_to_end, "measure", measure)
    line = "bench end-to-end --device cpu --batch 2,3 --output-tokens 9 --eager-tokens 8"
    assert main([*line.split(), "--op", "head=reference", "--json"]) == 0
    assert seen == [(2, 9, 8, 0, {"head": "reference"}), (3, 9, 8, 9, {"head": "reference"})]
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [record["device"] for record in lines] == ["CPU", "CPU"]
