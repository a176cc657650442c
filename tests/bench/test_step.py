"""The bench of whole steps on a small slice: its checks pass, and they can fail."""

import pytest
import torch

from deepinfer.bench import step
from deepinfer.bench.slices import RANKS, slice_arch, slice_network
from deepinfer.bench.step import Bed, Driver, check_company, check_graphs
from deepinfer.device import Device
from deepinfer.errors import ConfigError
from deepinfer.model import engram_table
from tests.runner.recorded import RecordedGraphs

HERE = Device(torch.device("cpu"), "none", "a CPU that pretends to have graphs", None)
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
    "index_topk": 8,
    "engram_compressed_vocab_size": 200,
    "engram_vocab_size": 40,
    "engram_n_heads": 2,
    "engram_head_dim": 64,
    "num_hidden_layers": 5,
    "compress_ratios": [0, 2, 2, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4],
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 4,
    "engram_layer_ids": [1],
    "engram_num_embeddings": [1],
    "max_position_embeddings": 4096,
}


DRAFT = {
    "compress_ratios": [0, 2, 2, 1, 1, 0, 0, 0],
    "dspark_target_layer_ids": [3, 4],
    "dspark_markov_rank": 32,
    "dspark_noise_token_id": 5,
}


@pytest.fixture(scope="module", params=[0, 2])
def bed(request):
    drafts = request.param
    arch = slice_arch("ep64", draft=drafts > 0, **(SMALL | (DRAFT if drafts else {})))
    network = slice_network(arch, HERE, {"*": "reference", "experts": "every"})
    return Bed(network, HERE, 130, drafts)


@pytest.fixture(autouse=True)
def unchecked_rows(monkeypatch):
    monkeypatch.setattr(engram_table, "_check_rows", lambda rows, count: None)


def test_a_slice_is_the_release_with_a_part_of_its_experts():
    for name, ranks in RANKS.items():
        arch = slice_arch(name)
        assert (arch.n_routed_experts, arch.num_hidden_layers) == (384 // ranks, 40)
        assert arch.draft is None
        assert arch.engram is not None
        assert sum(arch.engram.num_embeddings) < 1e5
    with pytest.raises(ConfigError, match="ep64"):
        slice_arch("ep7")


def test_captured_steps_pass_the_check_and_other_bits_do_not(bed, monkeypatch):
    assert check_graphs(bed, range(1, 4), RecordedGraphs())
    honest = Driver.checked

    def spoiled(self, steps):
        for number, (logits, tokens) in enumerate(honest(self, steps)):
            yield logits + (number == 3 and self.runner.captures.graphs > 0), tokens

    monkeypatch.setattr(Driver, "checked", spoiled)
    assert not check_graphs(bed, range(1, 4), RecordedGraphs())


def test_a_row_in_company_passes_the_check(bed, monkeypatch):
    monkeypatch.setattr(step, "_CROWD", 7)
    assert check_company(bed, None)


def test_operations_of_a_step_are_noted_with_their_arguments(bed):
    calls = []
    ops = step.recording(bed.network.ops, lambda name, call: calls.append((name, call)))
    x = torch.randn(3, 64)
    answer = ops.head(x, bed.network.weights.head)
    [(name, call)] = calls
    assert name == "head"
    assert torch.equal(answer, call())
