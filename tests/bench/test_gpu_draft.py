"""The bench of the draft pass on a small slice, and its marks."""

import pytest
import torch

from deepinfer.bench import gpu_draft
from deepinfer.bench.gpu_marks import marked
from deepinfer.bench.slices import slice_arch, slice_network
from deepinfer.model import engram_table
from deepinfer.model.drafter import Drafter
from deepinfer.model.load import resident_bytes
from tests.bench.test_step import DRAFT, HERE, SMALL


@pytest.fixture
def small_network(monkeypatch):
    monkeypatch.setattr(engram_table, "_check_rows", lambda rows, count: None)
    arch = slice_arch("ep64", draft=True, **(SMALL | DRAFT))
    return slice_network(arch, HERE, {"*": "reference", "experts": "every"})


def test_a_pass_drafts_three_tokens_a_request(small_network):
    given = gpu_draft.given(small_network, 4, torch.device("cpu"))
    found = gpu_draft._draft(given, Drafter(small_network))
    assert found.shape == (4, gpu_draft.DRAFTS)
    assert given.drawing.state.greedy[given.drawing.rows].tolist() == [False, True, False, True]
    again = gpu_draft._draft(given, Drafter(small_network))
    assert torch.equal(found, again)


def test_the_floor_counts_what_a_pass_reads_and_no_embeddings(small_network):
    weights = small_network.weights
    draft = weights.draft
    whole = resident_bytes(draft) + weights.head.nbytes
    left_out = draft.markov.embed, draft.keys, draft.main_proj, draft.main_norm
    assert gpu_draft._bytes_read(small_network) == whole - resident_bytes(left_out)


def test_marks_of_the_draft_pass_are_times_the_floor_and_more():
    row = {"name": "draft pass ep64 B=8", "trial": False, "floor_us": 500.0}
    marks = [marked(row | {"ours_us": us})["mark"] for us in (1200.0, 1201.0, 1750.0, 1751.0)]
    assert marks == ["aim", "pass", "pass", "below"]
    assert marked(row | {"ours_us": 1.0})["pass"] == {"ours_us": 1750.0}
