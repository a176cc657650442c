"""Captured decoding steps on a CUDA device: the bits of direct ones, and no hidden wait."""

import dataclasses

import pytest

from deepinfer.api import LLM
from deepinfer.device import find_device, no_sync
from deepinfer.nano.build import random_directory
from deepinfer.request import SamplingParams
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.runner import TorchRunner
from tests.runner.test_graphs import KINDS, prompts
from tests.runner.twins import LIMITS, EchoProposer, Twins, capturable, runner, serve

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return random_directory(tmp_path_factory.mktemp("nano"))


@pytest.mark.parametrize("mode", ["checkpoint", "noquant"])
@pytest.mark.parametrize("drafts", [0, 2])
def test_replayed_steps_equal_direct_ones_bit_by_bit(gpu, mode, drafts):
    net, limits = capturable(mode, gpu.device), dataclasses.replace(LIMITS, max_draft=drafts)
    first, second = (EchoProposer(drafts) if drafts else None for _ in range(2))
    graphs = find_device("cuda").graphs()
    twins = Twins(runner(net, limits, None, first), runner(net, limits, graphs, second))
    params = [KINDS[i % len(KINDS)] for i in range(12)]
    found = serve(net, twins, limits, prompts(net, 12), params, ahead=True, late=5)
    assert all(output.error is None for output in found)
    report = twins.other.captures
    assert report.replays > 2 * report.graphs > 10
    assert twins.compared > 40


def test_draft_stages_propose_the_same_in_captured_steps(gpu):
    net, limits = capturable("checkpoint", gpu.device), dataclasses.replace(LIMITS, max_draft=3)
    graphs = find_device("cuda").graphs()
    twins = Twins(
        runner(net, limits, None, DraftStages(net, 3)),
        runner(net, limits, graphs, DraftStages(net, 3)),
    )
    params = [KINDS[i % len(KINDS)] for i in range(9)]
    found = serve(net, twins, limits, prompts(net, 9), params, ahead=True, late=4)
    assert all(output.error is None for output in found)
    assert twins.other.captures.replays > 20


class Calm:
    """A runner for which every hidden wait is an error."""

    def __init__(self, made, device):
        self.made, self.device, self.steps = made, device, 0

    def forward(self, plan):
        with no_sync(self.device):
            self.made.forward(plan)

    def sample(self, number, masks=None):
        with no_sync(self.device):
            self.made.sample(number, masks)

    def draft(self, number):
        with no_sync(self.device):
            self.made.draft(number)
        self.steps += 1

    def collect(self, number):
        return self.made.collect(number)


@pytest.mark.parametrize(("captured", "requests", "least"), [(False, 8, 40), (True, 40, 200)])
def test_steps_never_wait_but_to_collect(gpu, captured, requests, least):
    net = capturable("checkpoint", gpu.device)
    limits = dataclasses.replace(LIMITS, max_draft=2)
    graphs = find_device("cuda").graphs() if captured else None
    calm = Calm(runner(net, limits, graphs, EchoProposer(2)), gpu.device)
    params = [KINDS[i % len(KINDS)] for i in range(requests - 1)]
    long = SamplingParams(temperature=0.9, seed=1, max_tokens=least + 50, ignore_eos=True)
    asked = [*prompts(net, requests - 1), [20, 21]]
    serve(net, calm, limits, asked, [*params, long], ahead=True)
    assert calm.steps >= least


# Short prompts and some that run the decoder layers with their last 140 tokens only.
ASKED = [[(7 * i + 11 * k) % 900 + 3 for k in range((3, 60, 170)[i % 3])] for i in range(9)]
PARAMS = [
    SamplingParams(temperature=i % 3 / 2, seed=i, max_tokens=14 + i, ignore_eos=True, logprobs=1)
    for i in range(9)
]


def answers(nano, **options):
    """What an engine on the device answers, plans and graph shapes of its steps, and replays.

    Prompts come three at a time, so that steps with prompts are captured too.
    """
    llm = LLM(
        nano,
        device="cuda",
        kv_cache_memory_bytes=1 << 28,
        max_model_len=512,
        max_num_seqs=16,
        **options,
    )
    made, steps, outputs = llm.runner, [], []
    assert isinstance(made, TorchRunner)
    forward = made.forward

    def seen(plan):
        forward(plan)
        steps.append((plan, made._steps[plan.number].shape))

    made.forward = seen
    for low in range(0, len(ASKED), 3):
        group = slice(low, low + 3)
        outputs += llm.generate(ASKED[group], PARAMS[group], use_tqdm=False)
    return [output.outputs for output in outputs], steps, made.captures.replays


@pytest.fixture(scope="module")
def plain(gpu, nano):
    """Answers without drafts, in captured steps."""
    outputs, steps, replays = answers(nano)
    assert replays > 0
    assert [shape.tokens for plan, shape in steps if plan.prefill] == [256] * 3  # 233 of them
    return outputs


def test_the_engine_answers_the_same_without_graphs(plain, nano):
    outputs, steps, replays = answers(nano, enforce_eager=True)
    assert replays == 0
    assert not any(plan.draft_budget for plan, _ in steps)
    assert outputs == plain


def test_adaptive_drafts_change_no_answer(plain, nano):
    drafts = {"num_speculative_tokens": 5, "policy": "adaptive"}
    outputs, steps, replays = answers(nano, speculative_config=drafts)
    assert replays > 0
    assert len({plan.draft_budget for plan, _ in steps}) > 2
    assert outputs == plain
