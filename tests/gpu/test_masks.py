"""Grammar masks on a CUDA device: part of captured steps, never a hidden wait, valid answers."""

import dataclasses
import json

import pytest

from deepinfer.api import LLM
from deepinfer.device import find_device
from deepinfer.nano.build import random_directory
from deepinfer.request import SamplingParams, StructuredOutputsParams
from tests.gpu.test_graphs import Calm
from tests.runner.matchers import HashMatcher
from tests.runner.test_graphs import KINDS, prompts
from tests.runner.twins import LIMITS, EchoProposer, Twins, capturable, runner, serve

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("drafts", [0, 2])
def test_masked_steps_replay_to_the_same_bits(gpu, drafts):
    net, limits = (
        capturable("checkpoint", gpu.device),
        dataclasses.replace(LIMITS, max_draft=drafts),
    )
    first, second = (EchoProposer(drafts) if drafts else None for _ in range(2))
    graphs = find_device("cuda").graphs()
    twins = Twins(runner(net, limits, None, first), runner(net, limits, graphs, second))
    matchers = {place: HashMatcher(net.arch.vocab_size) for place in (0, 3, 4)}
    given = (limits, prompts(net, 8), KINDS)
    found = serve(net, twins, *given, ahead=True, late=2, matchers=matchers)
    assert all(output.error is None for output in found)
    assert twins.other.captures.replays > 20
    assert all(matcher.asked > 2 for matcher in matchers.values())


def test_masks_go_up_without_a_wait(gpu):
    net, limits = capturable("checkpoint", gpu.device), dataclasses.replace(LIMITS, max_draft=2)
    graphs = find_device("cuda").graphs()
    calm = Calm(runner(net, limits, graphs, EchoProposer(2)), gpu.device)
    matchers = {place: HashMatcher(net.arch.vocab_size) for place in (0, 1, 6)}
    serve(net, calm, limits, prompts(net, 8), KINDS, ahead=True, matchers=matchers)
    assert calm.steps > 30


def test_constrained_answers_are_valid_and_drafts_and_graphs_change_none(gpu, tmp_path):
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "maximum": 999, "minimum": 0},
            "b": {"enum": ["x"]},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    wanted = [
        SamplingParams(max_tokens=40, seed=i, structured_outputs=form if i % 3 else None)
        for i in range(9)
    ]
    directory = random_directory(tmp_path)
    answers = []
    for drafts, eager in ((0, True), (3, False)):
        with LLM(
            directory,
            device="cuda",
            kv_cache_memory_bytes=1 << 28,
            max_model_len=512,
            max_num_seqs=16,
            enforce_eager=eager,
            speculative_config={"num_speculative_tokens": drafts},
        ) as llm:
            answers.append(llm.generate([[9 + i, 7] for i in range(9)], wanted, use_tqdm=False))
    first, second = ([output.outputs for output in found] for found in answers)
    assert first == second
    for (completion,), params in zip(first, wanted, strict=True):
        if params.structured_outputs is not None:
            assert completion.finish_reason == "stop"
            assert completion.violation is None
            assert set(json.loads(completion.text)) == {"a", "b"}
