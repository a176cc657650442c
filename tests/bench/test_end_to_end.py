"""The engine beside eager references: equal bits give equal tokens, and differences are seen."""

import json

import pytest

from deepinfer.bench import end_to_end
from deepinfer.bench.end_to_end import Job, compared, mini_arch
from deepinfer.cli import main
from deepinfer.device import find_device

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
    assert set(record["operations"].values()) == {"reference"}


def test_a_difference_counts_only_where_the_reference_was_decided():
    between = [[1.0, 0.5, 0.001, 1.0]]
    same = compared([(1, 2, 3, 4)], [(1, 2, 3, 4)], between)
    assert same == {
        "equal": True,
        "equal_tokens_asked": 2,
        "requests_equal_to_the_end": 1,
        "largest_gap_at_a_difference": 0.0,
    }
    late = compared([(1, 2, 9, 9)], [(1, 2, 3, 4)], between)
    assert late["equal"]
    assert late["largest_gap_at_a_difference"] == 0.001
    early = compared([(1, 9, 9, 9)], [(1, 2, 3, 4)], between)
    assert not early["equal"]
    assert early["largest_gap_at_a_difference"] == 0.5
    both = compared([(1, 2, 3, 4), (7,)], [(1, 2, 3, 4), (8,)], [*between, [0.25]])
    assert not both["equal"]
    assert both["requests_equal_to_the_end"] == 1


def test_the_command_serves_batches(capsys, monkeypatch):
    seen = []

    def measure(arch, device, job, ops):
        seen.append((job.requests, job.output, ops))
        return {"name": f"end to end rows {job.requests}", "ratio": 30.0}

    monkeypatch.setattr(end_to_end, "measure", measure)
    line = "bench end-to-end --device cpu --batch 2,3 --output-tokens 9"
    assert main([*line.split(), "--op", "head=reference", "--json"]) == 0
    assert seen == [(2, 9, {"head": "reference"}), (3, 9, {"head": "reference"})]
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [record["device"] for record in lines] == ["CPU", "CPU"]
