"""Draft stages in the engine: what they propose, and that it changes no answer."""

import dataclasses

import pytest
import torch

from deepinfer.model import engram_table
from deepinfer.model.drafter import Drafter
from deepinfer.request import SamplingParams
from deepinfer.runner.assemble import RowSlice
from deepinfer.runner.dspark import DraftStages
from tests.model.networks import network, new_state, run, tokens
from tests.runner.recorded import RecordedGraphs
from tests.runner.twins import LIMITS, Twins, capturable, runner, serve

PARAMS = [
    SamplingParams(temperature=0, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=2, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
]
DRAFTING = dataclasses.replace(LIMITS, max_draft=3)


@pytest.fixture(autouse=True)
def unchecked_rows(monkeypatch):
    monkeypatch.setattr(engram_table, "_check_rows", lambda rows, count: None)


def prompts(net):
    return [tokens(net, length, seed=length) for length in (20, 3, 41)]


class Watching(DraftStages):
    """Remembers what was proposed after which tokens."""

    def __init__(self, net, drafts):
        super().__init__(net, drafts)
        self.seen = []

    def propose(self, rows, groups, state, drawing):
        found = super().propose(rows, groups, state, drawing)
        for place, row in enumerate(groups.tolist()):
            known = rows.tokens[row, : int(rows.length[row])].tolist()
            if row and not bool(rows.ended[row]):
                alone = drawing._replace(
                    rows=groups[place, None], length=torch.tensor([len(known)])
                )
                values = vars(drawing.state).items()
                copies = {n: v.clone() for n, v in values if isinstance(v, torch.Tensor)}
                alone = alone._replace(state=dataclasses.replace(drawing.state, **copies))
                self.seen.append((known, found.tokens[place], found.confidence[place], alone))
        return found


def expected(net, known, drafts, drawing):
    """Proposals after `known` by a fresh pass over all of it but the newest token."""
    state, drafter, last = new_state(net), Drafter(net), len(known) - 1
    forward = run(net, state, [RowSlice(known, 0, last, 1, (1, 2, 3))])
    assert forward.features is not None
    drafter.seed(forward.features, forward.batch, state)
    newest, anchor, zero = (torch.tensor([n]) for n in (known[-1], last - 1, 0))
    found = drafter.draft(newest, anchor, torch.tensor([1]), zero, state, drawing)
    return found.tokens[0, :drafts], found.confidence[0, :drafts]


@pytest.mark.parametrize("mode", ["checkpoint", "noquant"])
def test_proposals_are_those_of_a_fresh_pass_over_all_known_tokens(mode):
    net = network(mode)
    watching = Watching(net, 3)
    made = runner(net, DRAFTING, None, watching)
    serve(net, made, DRAFTING, prompts(net), PARAMS, ahead=False)
    assert len(watching.seen) > 15
    for known, ids, confidence, drawing in watching.seen[::3]:
        wanted, raw = expected(net, known, 3, drawing)
        assert torch.equal(ids, wanted)
        assert torch.equal(confidence, raw)


def test_answers_are_those_without_drafts_and_captured_steps_propose_the_same():
    net = capturable("checkpoint")
    stages = [DraftStages(net, 3) for _ in range(2)]
    twins = Twins(
        runner(net, DRAFTING, None, stages[0]),
        runner(net, DRAFTING, RecordedGraphs(), stages[1]),
    )
    found = serve(net, twins, DRAFTING, prompts(net), PARAMS, ahead=True)
    plain = serve(net, runner(net, LIMITS), LIMITS, prompts(net), PARAMS, ahead=True)
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in plain]
    assert twins.other.captures.graphs >= 3


def test_steps_in_which_nobody_generates_propose_nothing():
    net, found = network("checkpoint"), []
    for most in (3, 0):
        limits = dataclasses.replace(LIMITS, max_draft=most, max_num_batched_tokens=12)
        made = runner(net, limits, None, DraftStages(net, most) if most else None)
        prompt = tokens(net, 41, seed=41)
        (output,) = serve(net, made, limits, [prompt], PARAMS[1:2], ahead=False)
        found.append(output.outputs[0].token_ids)
    assert len(found[0]) == PARAMS[1].max_tokens
    assert found[0] == found[1]


def test_a_network_without_stages_and_too_many_drafts_are_refused():
    with pytest.raises(ValueError, match="no draft stages"):
        DraftStages(network(draft=False), 1)
    draft = network().arch.draft
    assert draft is not None
    block = draft.block_size
    with pytest.raises(ValueError, match=f"blocks of {block}"):
        DraftStages(network(), block + 1)
