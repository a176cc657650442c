"""The whole engine beside eager reference operations: the same weights, device and requests.

A model of the release's kinds of layers at sizes that the GPU kernels serve, with random weights.
Both sides run greedy requests of one batch; tokens must agree until the reference itself is all but
undecided. Knows nothing of kernels.
"""

from __future__ import annotations

import json as json_text
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepinfer.arch import PAGE_TOKENS, Arch
from deepinfer.bench.measure import environment
from deepinfer.bench.slices import slice_arch, slice_network
from deepinfer.device import Device, find_device
from deepinfer.engine.build import build_around
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.errors import DeepinferError
from deepinfer.request import CompletionOutput, RequestOutput, SamplingParams

Record = dict[str, Any]
Tokens = list[tuple[int, ...]]

BATCHES = (1, 8, 32)
UNDECIDED = 1e-2  # nats between the two likeliest tokens
MINI: Mapping[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "moe_intermediate_size": 512,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "q_lora_rank": 256,
    "num_attention_heads": 16,
    "head_dim": 128,
    "o_lora_rank": 128,
    "o_groups": 4,
    "index_n_heads": 8,
    "index_topk": 64,
    "num_hidden_layers": 8,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1],
    "kv_source_layer_ids": [2, 4],
    "index_source_layer_ids": [2, 4, 6],
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 32,
    "engram_layer_ids": [1],
    "engram_num_embeddings": [1],
    "engram_compressed_vocab_size": 6000,
    "max_position_embeddings": 8192,
}
_CACHE_BYTES = 2 << 30
_FIRST = 100  # ids of prompts start here


@dataclass(frozen=True)
class Job:
    """Requests of one batch.

    Attributes:
        requests: at a time, all from the start.
        prompt, output: tokens of each.
        warm: times that the engine serves the batch before it is timed.
    """

    requests: int
    prompt: int = 512
    output: int = 256
    warm: int = 2


def mini_arch(**text: Any) -> Arch:
    """Eight layers of every kind at sizes between the embedded model's and the release's.

    Args:
        text: other values for keys of `text_config`.
    """
    return slice_arch("ep64", **{**MINI, **text})


class Side:
    """One of the two engines.

    Args:
        arch: of the model.
        device: where it computes.
        job: what it will serve.
        ops: operation name -> implementation name.
        eager: launched one by one, each step awaited; else as an engine runs by default.
    """

    def __init__(
        self, arch: Arch, device: Device, job: Job, ops: Mapping[str, str], *, eager: bool
    ):
        network = slice_network(arch, device, ops)
        length = -(-(job.prompt + job.output) // PAGE_TOKENS) * PAGE_TOKENS
        options = EngineOptions(
            device=str(network.device),
            max_num_seqs=job.requests,
            max_model_len=length,
            kv_cache_memory_bytes=_CACHE_BYTES,
            enable_prefix_caching=False,  # the same prompts come again
        )
        if eager:
            options = replace(options, enforce_eager=True, async_scheduling=False)
        else:
            options = replace(options, cudagraph_capture_sizes=(job.requests,))
        self.operations = {
            name: bound.implementation.name for name, bound in vars(network.ops).items()
        }
        self._service: Service = build_around(network, options, model=b"").service
        self._vocabulary = arch.vocab_size
        self._eager = eager

    def serve(self, job: Job) -> tuple[float, list[CompletionOutput]]:
        """Seconds from the first arrival to the last token, and the answers in order.

        Those of the eager side tell the two likeliest tokens of every place.

        Raises:
            DeepinferError: a request failed.
        """
        ids = random.Random(1)
        params = SamplingParams(
            max_tokens=job.output,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logprobs=2 if self._eager else None,
        )
        prompts = [
            [ids.randrange(_FIRST, self._vocabulary // 2) for _ in range(job.prompt)]
            for _ in range(job.requests)
        ]
        last: dict[str, RequestOutput] = {}
        started = time.perf_counter()
        for name, prompt in enumerate(prompts):
            self._service.add(str(name), {"prompt_token_ids": prompt}, params)
        while not self._service.idle:
            last |= {output.request_id: output for output in self._service.step()}
        seconds = time.perf_counter() - started
        answers = [last[str(name)] for name in range(job.requests)]
        for answer in answers:
            if answer.error is not None:
                raise DeepinferError(f"a request failed: {answer.error}")
        return seconds, [answer.outputs[0] for answer in answers]


def gaps(answer: CompletionOutput) -> list[float]:
    """Nats between the likeliest and the second token at every place.

    Args:
        answer: with the two likeliest.
    """
    assert answer.logprobs is not None, "the reference tells its likeliest tokens"
    tops = [sorted((e.logprob for e in place.values()), reverse=True) for place in answer.logprobs]
    return [values[0] - values[1] for values in tops]


def compared(
    ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], between: Sequence[list[float]]
) -> Record:
    """Whether tokens agree until the reference is undecided for the first time, for each request.

    Args:
        ours: generated tokens.
        theirs: of the reference.
        between: its gaps.

    Returns:
        `equal`, how many tokens that covers, how many requests are equal to their end, and the
        largest gap at which one left the reference.
    """
    covered, equal, whole = 0, True, 0
    left = 0.0
    for own, other, gap in zip(ours, theirs, between, strict=True):
        decided = next((i for i, g in enumerate(gap) if g < UNDECIDED), len(gap))
        apart = next((i for i, (a, b) in enumerate(zip(own, other, strict=True)) if a != b), None)
        covered += decided
        whole += apart is None
        if apart is not None:
            equal &= apart >= decided
            left = max(left, gap[apart])
    return {
        "equal": equal,
        "equal_tokens_asked": covered,
        "requests_equal_to_the_end": whole,
        "largest_gap_at_a_difference": left,
    }


def measure(arch: Arch, device: Device, job: Job, ops: Mapping[str, str] | None = None) -> Record:
    """Serve a batch on both sides: three times by the engine, once by the eager references.

    Args:
        arch: of the model.
        device: where both compute.
        job: the batch.
        ops: of the engine, operation name -> implementation name; None = its choice.
    """
    engine = Side(arch, device, job, ops or {}, eager=False)
    for _ in range(job.warm):
        engine.serve(job)
    times = [engine.serve(job) for _ in range(3)]
    seconds = sorted(each for each, _ in times)
    first, *others = [[answer.token_ids for answer in answers] for _, answers in times]
    eager = Side(arch, device, job, {"*": "reference"}, eager=True)
    eager.serve(replace(job, output=min(2, job.output)))
    eager_seconds, answers = eager.serve(job)
    tokens = job.requests * job.output
    return {
        "name": f"end to end rows {job.requests}",
        "rows": job.requests,
        "prompt": job.prompt,
        "output": job.output,
        "tokens_per_second": tokens / seconds[1],
        "eager_tokens_per_second": tokens / eager_seconds,
        "ratio": eager_seconds / seconds[1],
        "spread": (seconds[2] - seconds[0]) / seconds[1],
        "repeats_equal": all(other == first for other in others),
        **compared(first, [a.token_ids for a in answers], [gaps(a) for a in answers]),
        "operations": engine.operations,
    }


def run(
    device: str,
    batches: Sequence[int] = BATCHES,
    *,
    prompt: int = 512,
    output: int = 256,
    ops: Mapping[str, str] | None = None,
    json: bool = False,
) -> list[Record]:
    """Measure each batch, print and return the records, "end to end rows N".

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N".
        batches: numbers of requests.
        prompt: tokens of each.
        output: tokens generated by each.
        ops: see `measure`.
        json: one line of JSON a record.

    Raises:
        ConfigError: there is no such device.
    """
    found = find_device(device)
    records: list[Record] = []
    for requests in batches:
        record = measure(mini_arch(), found, Job(requests, prompt, output), ops)
        records.append(record | environment(found.torch))
        print(json_text.dumps(records[-1]) if json else _line(record), flush=True)
    return records


def _line(record: Record) -> str:
    return (
        f"{record['name']:22} {record['tokens_per_second']:9.1f} tokens/s, eager reference "
        f"{record['eager_tokens_per_second']:8.1f}: {record['ratio']:.1f} x; tokens equal "
        f"{record['equal']} ({record['equal_tokens_asked']} asked, differences up to a gap of "
        f"{record['largest_gap_at_a_difference']:.3f})"
    )
