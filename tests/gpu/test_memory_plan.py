"""What steps take of the device's memory, by torch's own count, against the memory plan."""

import pytest

from deepinfer.arch import Arch
from deepinfer.device import find_device
from deepinfer.engine.build import Built, build_around
from deepinfer.engine.options import EngineOptions
from deepinfer.model.network import Network
from deepinfer.request import SamplingParams
from tests.gpu.networks import build, sized

pytestmark = pytest.mark.gpu
DRAFTS = {"method": "dspark", "num_speculative_tokens": 5}


def true_width() -> Arch:
    """Six layers of every role at the release's width and vocabulary."""
    return sized(
        n_routed_experts=6,
        dspark_n_routed_experts=6,
        num_hidden_layers=6,
        compress_ratios=[0, 0, 2, 2, 1, 1, 0, 0, 0],
        kv_source_layer_ids=[2, 4],
        index_source_layer_ids=[2, 4, 5],
        candidate_source_layer_id=4,
        engram_layer_ids=[1],
        engram_num_embeddings=[1],
        engram_compressed_vocab_size=129_280,
        dspark_target_layer_ids=[3, 4, 5],
        max_position_embeddings=32_768,
    )


@pytest.fixture(scope="module")
def net(gpu) -> Network:
    return build(true_width(), gpu.device, gpu.arch, {})


def served(built: Built, prompts: list[int], params: list[SamplingParams]) -> int:
    """Serve prompts of so many tokens; returns the most bytes that were taken beside the pools."""
    service = built.service
    for number, (length, given) in enumerate(zip(prompts, params, strict=True)):
        ids = [(7 * number + 11 * place) % 100_000 for place in range(length)]
        service.add(str(number), ids, given)

    def run() -> None:
        while not service.idle:
            for output in service.step(unfinished=False):
                assert output.error is None, output.error

    return find_device("cuda").workspace(run)


@pytest.mark.parametrize("drafts", [None, DRAFTS])
def test_prompts_and_decoding_take_no_more_than_the_plan_says(net, drafts, record_property):
    options = EngineOptions(
        max_num_seqs=64, max_num_batched_tokens=4096, kv_cache_memory_bytes=4 << 30,
        max_model_len=16_384, speculative_config=drafts, enable_prefix_caching=False,
        enforce_eager=True, decoder_replay="exact",
    )  # fmt: skip
    built = build_around(net, options, model=b"memory", measured=True)
    plan = built.memory
    every = SamplingParams(
        temperature=0.8, top_p=0.9, top_k=50, logprobs=20, seed=3, max_tokens=12,
        repetition_penalty=1.1, presence_penalty=0.1, min_tokens=3,
    )  # fmt: skip
    long = served(built, [8192], [SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=5)])
    many = served(built, [100 + 10 * i for i in range(64)], [every] * 64)
    found = {"measured": plan.workspace_bytes, "long": long, "many": many}
    for name, size in found.items():
        record_property(name, size)
    assert plan.workspace_bytes is not None
    assert max(plan.workspace_bytes, long, many) <= plan.step_bytes, found
    assert plan.step_bytes < 6 * plan.workspace_bytes, found
