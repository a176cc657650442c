"""The batched engine gives what one request at a time gives, whatever the schedule."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.device import find_device
from deepinfer.request import SamplingParams
from deepinfer.runner.runner import Proposal
from tests.engine.engines import LIMITS, run_all, service, some_prompts
from tests.engine.sequential import Sequential
from tests.model.networks import network, tokens

CPU = find_device("cpu")
MODES = ("checkpoint", "noquant")
GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
DRAWN = [
    SamplingParams(max_tokens=11, seed=3, temperature=0.8),
    SamplingParams(max_tokens=7, seed=4, top_k=5, top_p=0.9),
    SamplingParams(max_tokens=9, seed=5, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(max_tokens=8, seed=6, min_p=0.05, logit_bias={40: 3.0}, min_tokens=8),
    SamplingParams(max_tokens=10, temperature=0, frequency_penalty=1.0),
    SamplingParams(max_tokens=6, seed=7, allowed_token_ids=[20, 21, 22, 23]),
]


@pytest.fixture(scope="module")
def alone():
    """Tokens of each prompt with each of DRAWN, served with no company, whole prompt at once."""
    limits = dataclasses.replace(LIMITS, max_num_seqs=1, max_num_batched_tokens=200)
    prompts = some_prompts(len(DRAWN))
    results = [
        run_all(service("checkpoint", limits), [p], [s])[0]
        for p, s in zip(prompts, DRAWN, strict=True)
    ]
    return [r.outputs[0].token_ids for r in results]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ahead", [False, True])
def test_greedy_answers_equal_the_sequential_engine(mode, ahead):
    prompts = some_prompts(9)
    found = run_all(service(mode, async_scheduling=ahead), prompts, [GREEDY] * 9)
    plain = Sequential(network(mode), CPU)
    for prompt, output in zip(prompts, found, strict=True):
        expected = plain.generate(prompt, 9)[0]
        end = network(mode).arch.eos_token_id
        if end not in expected:
            assert list(output.outputs[0].token_ids) == expected


@settings(max_examples=8)
@given(
    st.integers(1, 70),
    st.integers(1, 6),
    st.sampled_from([3, 4, 6, 12]),
    st.booleans(),
    st.permutations(range(len(DRAWN))),
)
def test_seeded_answers_do_not_depend_on_the_schedule(alone, budget, seqs, pages, ahead, order):
    """Chunk sizes, company, order of arrival, preemption and overlap change nothing."""
    limits = dataclasses.replace(
        LIMITS, max_num_batched_tokens=max(budget, seqs), max_num_seqs=seqs, num_pages=pages
    )
    prompts = some_prompts(len(DRAWN))
    found = run_all(
        service("checkpoint", limits, async_scheduling=ahead),
        [prompts[i] for i in order],
        [DRAWN[i] for i in order],
    )
    assert [output.outputs[0].token_ids for output in found] == [alone[i] for i in order]


class GuessingProposer:
    """Drafts that are right now and then: the row's own last tokens again, some of them spoiled."""

    graph_safe = False

    def __init__(self, drafts: int):
        self.drafts = drafts

    def seed(self, forward, state):
        pass

    def propose(self, rows, groups, state, drawing):
        back = rows.length[groups].unsqueeze(1) - self.drafts + torch.arange(self.drafts)
        tokens = rows.tokens[groups.unsqueeze(1), back.clamp(min=0)]
        spoiled = (rows.length[groups] % 3 == 0).unsqueeze(1)
        return Proposal(torch.where(spoiled, 50, tokens), torch.zeros(tokens.shape))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("drafts", [1, 3])
def test_speculation_changes_no_token(alone, drafts, ahead):
    limits = dataclasses.replace(LIMITS, max_draft=drafts)
    proposer = GuessingProposer(drafts)
    engine = service("checkpoint", limits, async_scheduling=ahead, proposer=proposer)
    found = run_all(engine, some_prompts(len(DRAWN)), DRAWN)
    assert [output.outputs[0].token_ids for output in found] == alone
    counters = engine.core.scheduler.snapshot()
    assert counters.drafts_verified > 0


class OracleProposer(GuessingProposer):
    """Drafts that are always right: the answers are known beforehand."""

    def __init__(self, drafts, prompts, answers):
        super().__init__(drafts)
        self.known = [[*p, *a, *[9] * 8] for p, a in zip(prompts, answers, strict=True)]

    def propose(self, rows, groups, state, drawing):
        tokens = []
        for row in groups.tolist():
            length = int(rows.length[row])
            seen = rows.tokens[row, :length].tolist()
            match = [k for k in self.known if k[:length] == seen]
            tokens.append(match[0][length : length + self.drafts] if match else [9] * self.drafts)
        return Proposal(torch.tensor(tokens), torch.ones(len(tokens), self.drafts))


def test_right_drafts_are_accepted_and_save_steps(alone):
    prompts = some_prompts(len(DRAWN))
    limits = dataclasses.replace(LIMITS, max_draft=3, max_num_batched_tokens=200)
    engine = service("checkpoint", limits, proposer=OracleProposer(3, prompts, alone))
    found = run_all(engine, prompts, DRAWN)
    assert [output.outputs[0].token_ids for output in found] == alone
    counters = engine.core.scheduler.snapshot()
    assert counters.drafts_accepted > 0.7 * counters.drafts_verified
    assert counters.steps < max(len(a) for a in alone)


class SpoilingProposer(OracleProposer):
    """Right drafts but for one, so that exactly `right` of them can be accepted."""

    def __init__(self, drafts, prompts, answers, right):
        super().__init__(drafts, prompts, answers)
        self.right = right

    def propose(self, rows, groups, state, drawing):
        proposal = super().propose(rows, groups, state, drawing)
        if self.right < self.drafts:
            tokens = proposal.tokens
            tokens[:, self.right] = 3 + (tokens[:, self.right] == 3)
        return proposal


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_every_acceptance_count_rolls_back_at_every_alignment(right, ahead):
    """Prompts end around a page border, at every place in windows, pairs and rings."""
    net = network()
    prompts = [tokens(net, count, 50 + count) for count in range(120, 134)]
    params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True, logprobs=2)
    limits = dataclasses.replace(
        LIMITS, max_num_batched_tokens=2000, num_pages=40, num_slots=16, max_num_seqs=14
    )
    expected = run_all(service("checkpoint", limits), prompts, [params] * len(prompts))
    answers = [output.outputs[0].token_ids for output in expected]
    proposer = SpoilingProposer(3, prompts, answers, right)
    limits = dataclasses.replace(limits, max_draft=3)
    engine = service("checkpoint", limits, async_scheduling=ahead, proposer=proposer)
    found = run_all(engine, prompts, [params] * len(prompts))
    assert [output.outputs for output in found] == [output.outputs for output in expected]
    counters = engine.core.scheduler.snapshot()
    if right == 0:
        assert counters.drafts_accepted <= counters.drafts_verified // 3
    else:
        assert counters.drafts_accepted >= len(prompts) * right


def test_bounded_replay_is_one_result_for_every_schedule():
    keep = network().arch.decoder_keep
    prompts = some_prompts(5, 90)
    expected = None
    for budget, pages, ahead in ((200, 12, False), (7, 12, True), (30, 3, False)):
        limits = dataclasses.replace(
            LIMITS, decoder_keep=keep, max_num_batched_tokens=budget, num_pages=pages
        )
        found = run_all(
            service("checkpoint", limits, async_scheduling=ahead), prompts, [GREEDY] * 5
        )
        answers = [output.outputs[0].token_ids for output in found]
        assert expected in (None, answers)
        expected = answers


def test_a_row_with_damaged_logits_ends_alone(monkeypatch):
    engine = service()
    net = network("checkpoint")  # the engine's own object
    honest = net.logits

    def logits(hidden):
        values = honest(hidden)
        return values if len(values) < 2 else values.index_fill(0, torch.tensor([0]), torch.nan)

    prompts = some_prompts(3)
    expected = run_all(service(), prompts, [GREEDY] * 3)
    monkeypatch.setattr(net, "logits", logits)
    found = run_all(engine, prompts, [GREEDY] * 3)
    reasons = [output.outputs[0].finish_reason for output in found]
    assert "error" in reasons
    for output, other in zip(found, expected, strict=True):
        if output.error is None:
            assert output.outputs == other.outputs
        else:
            assert "not finite" in output.error
