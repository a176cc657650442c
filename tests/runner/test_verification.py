"""Rules of verification in the runner: laws are kept where they are used, tokens follow them."""

import dataclasses

import numpy as np
import pytest
import torch

from deepinfer.engine.service import Service
from deepinfer.ops.noise import Purpose
from deepinfer.ops.sample import SamplerTable, candidates, draw_drafts
from deepinfer.ops.sample.cases import admitted
from deepinfer.ops.verify import block, ratio
from deepinfer.request import SamplingParams
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.verification import RuleName, Verification
from deepinfer.step import RowSampling
from tests.engine.engines import LIMITS, run_all, service
from tests.model.networks import network, tokens

ROWS, CAP, VOCAB = 5, 3, 12


def table():
    made = SamplerTable(ROWS)
    for row in range(1, ROWS):
        temperature = 0.0 if row == 2 else 0.5 * row
        made.admit(admitted(row, 4, RowSampling(temperature=temperature))._replace(seed=row))
    return made


@pytest.mark.parametrize("name", ["match", "ratio", "block"])
def test_drafts_are_judged_by_the_laws_they_were_drawn_from(name):
    generator = torch.Generator().manual_seed(3)
    state, rows = table().state, torch.tensor([3, 1, 2, 4])
    length = torch.tensor([9, 4, 30, 7])
    logits = torch.randn(len(rows), CAP + 2, VOCAB, generator=generator) * 2
    verification = Verification(name, ROWS, CAP, VOCAB)
    drawing = verification.drawing(state, rows, length)
    # The stages draw a whole block, of which CAP drafts can be verified.
    choose = drawing(logits[:, : CAP + 1])
    drafts = torch.stack([choose(logits[:, i], i) for i in range(CAP + 1)], 1)[:, :CAP]
    purpose = Purpose.TARGET if name == "match" else Purpose.DRAFT
    found = [
        draw_drafts(
            logits[:, i],
            state,
            rows,
            candidates(logits[:, i], state, rows, length + i, purpose),
            keep_law=True,
        )
        for i in range(CAP)
    ]
    assert torch.equal(drafts, torch.stack([one.tokens for one in found], 1))
    law = torch.randn(len(rows), CAP + 1, VOCAB, generator=generator)
    law -= law.amax(-1, keepdim=True)
    chosen = torch.randint(0, VOCAB, (len(rows), CAP + 1), generator=generator)
    chosen[:2, :2] = drafts[:2, :2]
    flags = torch.zeros(len(rows), CAP + 1, dtype=torch.int32)
    key = state.key(rows, length)
    kept = verification.judge(drafts, chosen, flags, law, rows, key)
    if name == "match":
        assert verification.laws is None
        assert kept.accepted.tolist()[:2] >= [2, 2]
        return
    laws = [one.law for one in found]
    rule = ratio if name == "ratio" else block
    wanted = rule(
        drafts, chosen, flags, law, torch.stack([x for x in laws if x is not None], 1), key
    )
    assert all(torch.equal(a, b) for a, b in zip(kept, wanted, strict=True))


def test_drafts_of_few_candidates_are_drawn_from_their_law():
    count, zero = 20_000, torch.zeros(20_000, dtype=torch.int64)
    made = SamplerTable(2)
    made.admit(admitted(1, 1, RowSampling()))
    logits = torch.linspace(3, -3, 200).expand(count, 200)[:, torch.randperm(200)]
    among = candidates(logits, made.state, zero + 1, torch.arange(count), Purpose.DRAFT)
    found = draw_drafts(logits, made.state, zero + 1, among, keep_law=True)
    assert found.law is not None
    law = found.law[0].double().softmax(0).numpy()
    assert np.count_nonzero(law) == 64
    counts = np.bincount(found.tokens, minlength=200)
    assert counts[law == 0].sum() == 0
    there = law > 0
    statistic = ((counts - law * count)[there] ** 2 / (law * count)[there]).sum()
    assert statistic < 63 + 6 * np.sqrt(2 * 63)


def served(rule: RuleName, drafts: int, seeds: int) -> tuple[np.ndarray, Service]:
    """How often each pair of second and third tokens comes, over many seeds of one prompt."""
    net = network()
    limits = dataclasses.replace(
        LIMITS, max_draft=drafts, num_slots=40, max_num_seqs=32, num_pages=40,
        max_num_batched_tokens=256,
    )  # fmt: skip
    proposer = DraftStages(net, drafts) if drafts else None
    engine = service(limits=limits, proposer=proposer, verification=rule)
    params = [
        SamplingParams(seed=seed, temperature=0.7, top_k=2, max_tokens=3, ignore_eos=True)
        for seed in range(seeds)
    ]
    found = run_all(engine, [tokens(net, 6, 1)] * seeds, params)
    pairs = [output.outputs[0].token_ids for output in found]
    names = sorted(set(pairs))
    counts = np.array([pairs.count(name) for name in names])
    return counts, engine


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_an_engine_with_another_rule_gives_tokens_of_the_same_law(rule):
    plain, _ = served("match", 0, 1500)
    found, engine = served(rule, 3, 1500)
    assert engine.core.scheduler.snapshot().drafts_accepted > 100
    assert len(plain) == len(found) == 8
    statistic = ((plain - found) ** 2 / (plain + found)).sum()
    assert statistic < 7 + 6 * np.sqrt(2 * 7)
