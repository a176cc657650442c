"""One recorded request run again alone: equal, another order of sums, or something broken."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.cli import main
from deepinfer.engine.llm import LLM
from deepinfer.engine.record import FileRecorder, read_requests
from deepinfer.engine.rerun import needed_change, rerun
from deepinfer.errors import ConfigError
from deepinfer.nano.build import random_directory
from deepinfer.ops.noise import NoiseKey, Purpose, gumbel_argmax
from deepinfer.ops.sample.law import truncate
from deepinfer.request import Request, SamplingParams
from deepinfer.runner.runner import TorchRunner

SMALL = {
    "device": "cpu",
    "kv_cache_memory_bytes": 64_000_000,
    "max_model_len": 260,
    "max_num_seqs": 8,
}
DRAFTS = {"num_speculative_tokens": 2}
PROMPTS = [
    [(7 * i + 3 * k) % 900 + 5 for k in range(length)] for i, length in enumerate((40, 9, 20))
]
PARAMS = [
    SamplingParams(temperature=1, seed=3, max_tokens=12, logprobs=1, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=8, allowed_token_ids=range(100, 600)),
    SamplingParams(
        *(2, 0.8, 0.9, 40), seed=5, max_tokens=6, repetition_penalty=1.2, logprobs=0
    ),
]  # fmt: skip


class Damaging(FileRecorder):
    """Before step `number` it changes stored state behind the engine's back."""

    def __init__(self, path, number, damage):
        super().__init__(path, None)
        self.number, self.damage = number, damage
        self.llm: LLM | None = None

    def plan(self, plan):
        super().plan(plan)
        if plan.number == self.number and self.llm is not None:
            runner = self.llm.runner
            assert isinstance(runner, TorchRunner)
            self.damage(runner.state)


def record(model, path, recorder=None, **options):
    """Serve the prompts together, and give the records of their requests."""
    recorder = recorder or FileRecorder(path, None)
    llm = LLM(model, recorder=recorder, **SMALL, **options)
    if isinstance(recorder, Damaging):
        recorder.llm = llm
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    recorder.close()
    return outputs, read_requests(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_directory(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("record") / "trace"


@pytest.fixture(scope="module")
def recorded(model, path):
    outputs, requests = record(model, path, speculative_config=DRAFTS)
    answers = {f"{o.request_id}/{c.index}" if len(o.outputs) > 1 else o.request_id: c
               for o in outputs for c in o.outputs}  # fmt: skip
    assert set(requests) == set(answers)
    for name, item in requests.items():
        assert tuple(item.answer.token_ids) == answers[name].token_ids
        assert item.answer.finish_reason == answers[name].finish_reason
        steps = [number for number, _, _ in item.answer.drafts]
        assert steps == sorted(set(steps))
        accepted = sum(right for _, _, right in item.answer.drafts)
        assert accepted + len(steps) == len(item.answer.token_ids)
    for output in outputs:
        metrics = output.metrics
        assert metrics is not None
        parts = [item for name, item in requests.items() if name.split("/")[0] == output.request_id]
        told = [sum(d[k] for item in parts for d in item.answer.drafts) for k in (1, 2)]
        assert [metrics.drafts_verified, metrics.drafts_accepted] == told
        assert len(metrics.drafts_verified_at) == 2
        assert metrics.drafts_verified > 0
    return requests


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model, **SMALL)


def changed(item, **answer):
    return item._replace(answer=dataclasses.replace(item.answer, **answer))


def test_an_untouched_record_is_equal_though_it_ran_in_company_and_with_drafts(recorded, llm):
    assert {name: rerun(llm.core, item).kind for name, item in recorded.items()} == dict.fromkeys(
        recorded, "equal"
    )
    cut = recorded["0"]  # a recording that broke off says less, but nothing wrong
    cut = changed(cut, token_ids=cut.answer.token_ids[:5], logprobs=cut.answer.logprobs[:5],
                  finish_reason=None)  # fmt: skip
    assert rerun(llm.core, cut).kind == "equal"


def test_another_order_of_sums_is_numerics_from_the_first_token_on(model, recorded):
    other = LLM(model, ops={"head": "cpu"}, **SMALL)
    verdict = rerun(other.core, recorded["0"])
    assert verdict.kind == "numerics"
    assert verdict.place is not None
    assert verdict.place.position < 4
    assert 0 < verdict.drift < 2
    assert rerun(other.core, recorded["0"], bound=1e-7).kind == "corruption"


def test_a_changed_token_is_corruption_where_it_is(recorded, llm):
    item = recorded["0"]
    tokens = list(item.answer.token_ids)
    tokens[6] = (tokens[6] + 400) % 900
    verdict = rerun(llm.core, changed(item, token_ids=tokens))
    assert (verdict.kind, verdict.place and verdict.place.position) == ("corruption", 6)
    assert verdict.place is not None
    assert verdict.place.here == item.answer.token_ids[6]
    greedy = recorded["1"]
    tokens = list(greedy.answer.token_ids)
    tokens[3] = 50  # not among those allowed
    verdict = rerun(llm.core, changed(greedy, token_ids=tokens))
    assert (verdict.kind, verdict.place and verdict.place.position) == ("corruption", 3)
    assert "impossible" in verdict.reason


def forgotten(state):
    """Windows of zeros: good numbers, but not those of the tokens."""
    state.slots.zero_()


def rubbish(state):
    state.slots[1:].view(torch.uint8)[:] = 0x7F


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (forgotten, "equal bit by bit"),
        pytest.param(rubbish, "failed", marks=pytest.mark.slow),
    ],
)
def test_damaged_state_is_corruption_from_the_step_that_read_it(
    model, recorded, llm, tmp_path, damage, words
):
    trace = tmp_path / "trace"
    _, damaged = record(model, trace, Damaging(trace, 7, damage))
    verdict = rerun(llm.core, damaged["0"])
    assert verdict.kind == "corruption"
    assert words in verdict.reason
    assert verdict.place is not None
    assert 5 <= verdict.place.position <= 8
    good = recorded["0"].answer.token_ids
    assert damaged["0"].answer.token_ids[:5] == good[:5]


def test_a_record_without_tokens_cannot_be_compared(recorded, llm):
    with pytest.raises(ConfigError, match="no recorded token"):
        rerun(llm.core, changed(recorded["0"], token_ids=[]))
    with pytest.raises(ConfigError, match="logprobs=0"):
        rerun(llm.core, recorded["1"]._replace(constrained=True))


def test_the_log_probabilities_of_a_constrained_request_are_compared(recorded, llm):
    item = recorded["0"]._replace(constrained=True)
    assert rerun(llm.core, item).kind == "equal"
    logprobs = list(item.answer.logprobs)
    logprobs[9] -= 5
    verdict = rerun(llm.core, changed(item, logprobs=logprobs))
    assert (verdict.kind, verdict.place and verdict.place.position) == ("corruption", 9)


def test_the_command_names_requests_and_judges_one(model, path, recorded, capsys):
    common = ["--model", str(model), "--max-model-len", "260", "--max-num-seqs", "8"]
    assert main(["replay", str(path), "--list", *common]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert sorted(line.split(":")[0] for line in listed) == sorted(recorded)
    assert main(["replay", str(path), "--request", "0", "--json", *common]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "equal"
    assert main(["replay", str(path), "--request", "nobody", *common]) == 2
    assert "no request 'nobody'" in capsys.readouterr().err


laws = st.lists(st.integers(-30, 12), min_size=3, max_size=9, unique=True)


@given(laws, st.data())
@settings(max_examples=150)
def test_the_needed_change_is_nothing_for_the_choice_and_enough_for_any_other_token(values, data):
    law = np.array(values) / 4
    law -= np.log(np.exp(law).sum())
    greedy = data.draw(st.booleans())
    top_k, top_p = data.draw(st.sampled_from([(0, 1.0), (2, 1.0), (0, 0.7)]))
    params = SamplingParams(temperature=0 if greedy else 1, top_k=top_k, top_p=top_p)
    request = Request("r", (1,), params, seed=data.draw(st.integers(0, 2**64 - 1)))

    def choice(law):
        if greedy:
            return int(law.argmax())
        scaled = torch.from_numpy(law - law.max()).float()[None]
        exact = torch.tensor([params.top_p], dtype=torch.float64)
        kept = truncate(scaled, torch.tensor([-math.inf]), torch.tensor([top_k]), exact)
        seed = request.seed - (1 << 64) if request.seed >> 63 else request.seed
        key = NoiseKey(*(torch.tensor([n]) for n in (seed, 1, 0)))
        return int(gumbel_argmax(kept, key, Purpose.TARGET))

    chosen = choice(law)
    assert needed_change(law, chosen, request, 1) == 0
    token = data.draw(st.integers(0, len(law) - 1))
    needed = needed_change(law, token, request, 1)
    assert needed >= 0
    assert (needed > 0) == (token != chosen)
    if top_k == 0 and top_p == 1:  # then it is exact
        moved = law - needed - 1e-3
        moved[token] += 2 * (needed + 1e-3)
        assert choice(moved) == token
    law[token] = -np.inf
    assert needed_change(law, token, request, 1) == math.inf
