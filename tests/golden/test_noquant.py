"""Without quantisers and rounding: the mathematics, end to end and free-running."""

import pytest
import torch

from tests.golden.runs import Session

pytestmark = pytest.mark.golden

CASES = [(config, sequence) for config in "abd" for sequence in ("s0", "s1", "s2")]


@pytest.fixture(params=CASES, ids=["-".join(case) for case in CASES])
def case(request, runs):
    config, sequence = request.param
    return runs.golden(config), runs.noquant(config, sequence), sequence


def test_prompt_logits(case):
    golden, run, sequence = case
    rows = golden.tensor("prefill", f"{sequence}.rows").long()
    golden.check("noquant", f"{sequence}.logits", run.logits[rows], "noquant")


def test_greedy_continuation(case):
    golden, run, sequence = case
    stem = f"{sequence}.decode"
    golden.check("noquant", f"{stem}.tokens", torch.tensor(run.tokens), "noquant")
    golden.check("noquant", f"{stem}.logits", torch.stack(run.step_logits), "noquant")
    golden.check("noquant", f"{stem}.margin", run.margins[1:], "noquant")


def test_drafts(case):
    golden, run, sequence = case
    stem = f"{sequence}.dspark"
    golden.check("noquant", f"{stem}.draft_tokens", run.draft_tokens, "noquant")
    golden.check("noquant", f"{stem}.confidence", run.confidence, "noquant")
    golden.check("noquant", f"{stem}.draft_logits", run.draft_logits, "noquant")


@pytest.mark.parametrize("config", list("abd"))
def test_residual_streams_after_every_layer(config, runs):
    golden, run = runs.golden(config), runs.noquant(config, "s1")
    rows = golden.tensor("noquant", "s1.rows")
    streams = [
        run.observed["resid", layer.index][rows]
        for layer in runs.model(config, "noquant").arch.layers
    ]
    golden.check("noquant", "s1.resid", torch.stack(streams), "noquant")


@pytest.mark.parametrize("config", list("abd"))
def test_one_shot_prefill_equals_decoding_row_by_row(config, runs):
    """The same tokens, prefilled at once instead of decoded: same logits, same selections."""
    run = runs.noquant(config, "s1")
    network = runs.model(config, "noquant").network
    ids = runs.model(config, "noquant").prompt("s1") + run.tokens
    observed = {}
    session = Session(network, tokens=len(ids))
    forward = session.feed(ids, observed)
    found = network.logits(forward.hidden[-len(run.tokens) :])
    torch.testing.assert_close(found, torch.stack(run.step_logits), rtol=0, atol=3e-5)
    for layer, chosen in run.selects.items():
        assert (observed["select", layer][-len(chosen) :] == torch.stack(chosen)).all()
