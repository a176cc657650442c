"""The whole engine beside eager reference operations: the same weights, device and requests.

A model of the release's kinds of layers at sizes that the GPU kernels serve, with random weights.
Both sides run greedy requests of one batch; whether their tokens agree is told in two ways, see
`agreement.py`. The engine keeps its prefix cache; it serves the batch cold, then once more with
what the cache has. Knows nothing of kernels.
"""

from __future__ import annotations

import json as json_text
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from deepinfer.arch import PAGE_TOKENS, Arch
from deepinfer.bench.agreement import behind_equal, compared, shake
from deepinfer.bench.measure import environment
from deepinfer.bench.slices import slice_arch, slice_network
from deepinfer.device import Device, find_device
from deepinfer.engine.build import build_around
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.errors import ConfigError, DeepinferError
from deepinfer.request import CompletionOutput, RequestOutput, SamplingParams

Record = dict[str, Any]
Tokens = list[tuple[int, ...]]

BATCHES = (1, 8, 32, 64)
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
_LEAST_STEPS = 4  # that a decoding step's time is told from
_SHAKEN = 16  # tokens that the shaken references generate at most


@dataclass(frozen=True)
class Job:
    """Requests of one batch.

    Attributes:
        requests: at a time, all from the start.
        prompt, output: tokens of each.
        warm: times that the engine serves the batch before it is timed.
        eager: tokens that the references generate for each, None = all. The time of the others is
            that of as many of their decoding steps.
        shaken: tokens that references generate with single results moved by one unit in the last
            place, to say how well two right engines agree; 0 = that is not measured.
    """

    requests: int
    prompt: int = 512
    output: int = 256
    warm: int = 2
    eager: int | None = None
    shaken: int = 0

    def __post_init__(self) -> None:
        if min(self.requests, self.prompt, self.output) < 1:
            raise ConfigError(
                f"{self.requests} requests, {self.prompt} prompt and {self.output} output tokens: "
                "use numbers >= 1"
            )
        if self.eager is not None and not 1 <= self.eager <= self.output:
            raise ConfigError(f"eager {self.eager}: use 1 to the output tokens, {self.output}")


class Served(NamedTuple):
    """A batch that was served.

    Attributes:
        seconds: from the first arrival to the last token.
        answers: in order.
        steps: seconds of each step, and how many requests it gave news of.
    """

    seconds: float
    answers: list[RequestOutput]
    steps: list[tuple[float, int]]

    @property
    def tokens(self) -> Tokens:
        """Generated ones."""
        return [answer.outputs[0].token_ids for answer in self.answers]

    @property
    def hit_rate(self) -> float:
        """Part of the prompt tokens that were not computed again."""
        total = sum(len(answer.prompt_token_ids) for answer in self.answers)
        return sum(answer.num_cached_tokens for answer in self.answers) / total

    def decoding(self) -> list[float]:
        """Seconds of the steps that only decoded, all requests at once."""
        return [seconds for seconds, news in self.steps if news == len(self.answers)][1:]


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
        shaken: with single results moved, see `shake`.
    """

    def __init__(
        self,
        arch: Arch,
        device: Device,
        job: Job,
        ops: Mapping[str, str],
        *,
        eager: bool,
        shaken: bool = False,
    ):
        network = slice_network(arch, device, ops)
        if shaken:
            shake(network)
        length = -(-(job.prompt + job.output) // PAGE_TOKENS) * PAGE_TOKENS
        options = EngineOptions(
            device=str(network.device),
            max_num_seqs=job.requests,
            max_model_len=length,
            kv_cache_memory_bytes=_CACHE_BYTES,
        )
        if eager:
            options = replace(
                options, enforce_eager=True, async_scheduling=False, enable_prefix_caching=False
            )
        else:
            options = replace(options, cudagraph_capture_sizes=(job.requests,))
        self.operations = {
            name: bound.implementation.name for name, bound in vars(network.ops).items()
        }
        self._service: Service = build_around(network, options, model=b"").service
        self._vocabulary = arch.vocab_size
        self._eager = eager

    def forget(self) -> None:
        """Empty the prefix cache."""
        self._service.core.scheduler.reset_prefix_cache()

    def serve(self, job: Job) -> Served:
        """Serve a batch; answers of the eager side tell the two likeliest tokens of every place.

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
        steps: list[tuple[float, int]] = []
        started = before = time.perf_counter()
        for name, prompt in enumerate(prompts):
            self._service.add(str(name), {"prompt_token_ids": prompt}, params)
        while not self._service.idle:
            news = {output.request_id: output for output in self._service.step()}
            last |= news
            now = time.perf_counter()
            steps.append((now - before, len(news)))
            before = now
        answers = [last[str(name)] for name in range(job.requests)]
        for answer in answers:
            if answer.error is not None:
                raise DeepinferError(f"a request failed: {answer.error}")
        return Served(before - started, answers, steps)


def gaps(answer: CompletionOutput) -> list[float]:
    """Nats between the likeliest and the second token at every place.

    Args:
        answer: with the two likeliest.
    """
    assert answer.logprobs is not None, "the reference tells its likeliest tokens"
    tops = [sorted((e.logprob for e in place.values()), reverse=True) for place in answer.logprobs]
    return [values[0] - values[1] for values in tops]


def measure(arch: Arch, device: Device, job: Job, ops: Mapping[str, str] | None = None) -> Record:
    """Serve a batch on both sides: three times by the engine, once by the eager references.

    Args:
        arch: of the model.
        device: where both compute.
        job: the batch.
        ops: of the engine, operation name -> implementation name; None = its choice.
    """
    record, tokens, seconds = _engine(Side(arch, device, job, ops or {}, eager=False), job)
    eager = Side(arch, device, job, {"*": "reference"}, eager=True)
    eager.serve(replace(job, output=min(2, job.output), eager=None))
    count = job.eager or job.output
    served = eager.serve(replace(job, output=count, eager=None))
    theirs = _eager_seconds(served, job)
    ours = [t[:count] for t in tokens]
    record |= {
        "eager_tokens_per_second": job.requests * job.output / theirs["eager_seconds"],
        **theirs,
        "ratio": theirs["eager_seconds"] / seconds,
        **compared(ours, served.tokens, [gaps(a.outputs[0]) for a in served.answers]),
    }
    if job.shaken:
        side = Side(arch, device, job, {"*": "reference"}, eager=True, shaken=True)
        again = side.serve(replace(job, output=min(count, job.shaken), eager=None))
        expected = behind_equal(again.tokens, served.tokens)
        record |= {
            "behind_equal_expected": expected.share,
            "as_expected": behind_equal(ours, served.tokens).no_worse(expected),
        }
    return record


def _engine(engine: Side, job: Job) -> tuple[Record, Tokens, float]:
    """Serve the batch cold three times and from the cache once; record, tokens and cold seconds."""
    for _ in range(job.warm):
        for _ in range(2):  # cold, then from the cache
            engine.serve(job)
        engine.forget()
    cold: list[Served] = []
    for _ in range(3):
        engine.forget()
        cold.append(engine.serve(job))
    again = engine.serve(job)
    seconds = sorted(served.seconds for served in cold)
    first, *others = [served.tokens for served in cold]
    tokens = job.requests * job.output
    return (
        {
            "name": f"end to end rows {job.requests}",
            "rows": job.requests,
            "prompt": job.prompt,
            "output": job.output,
            "tokens_per_second": tokens / seconds[1],
            "spread": (seconds[2] - seconds[0]) / seconds[1],
            "repeats_equal": all(other == first for other in others),
            "hit_rate": max(served.hit_rate for served in cold),
            "hit_rate_is": "real",
            "again_tokens_per_second": tokens / again.seconds,
            "again_hit_rate": again.hit_rate,
            "again_equal": again.tokens == first,
            "operations": engine.operations,
        },
        first,
        seconds[1],
    )


def _eager_seconds(served: Served, job: Job) -> Record:
    """What the whole batch takes the references, by their steps if they were stopped before."""
    left = 0 if job.eager is None else job.output - job.eager
    if not left:
        return {"eager_seconds": served.seconds, "eager_seconds_are": "measured"}
    steps = served.decoding()
    if len(steps) < _LEAST_STEPS:
        raise ConfigError(
            f"eager {job.eager}: {len(steps)} steps with all {job.requests} requests; use more "
            f"tokens, so that there are {_LEAST_STEPS}"
        )
    half, middle = len(steps) // 2, statistics.median(steps)
    apart = abs(statistics.median(steps[:half]) - statistics.median(steps[half:])) / middle
    return {
        "eager_seconds": served.seconds + left * middle,
        "eager_seconds_are": f"{job.eager} of {job.output} tokens measured, the others by the "
        f"median of {len(steps)} decoding steps",
        "eager_step_ms": middle * 1e3,
        "eager_step_spread": apart,
    }


def run(
    device: str,
    batches: Sequence[int] = BATCHES,
    *,
    prompt: int = 512,
    output: int = 256,
    eager: int | None = None,
    ops: Mapping[str, str] | None = None,
    json: bool = False,
) -> list[Record]:
    """Measure each batch, print and return the records, "end to end rows N".

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N".
        batches: numbers of requests.
        prompt: tokens of each.
        output: tokens generated by each.
        eager: by the references, see `Job`.
        ops: see `measure`.
        json: one line of JSON a record.

    Raises:
        ConfigError: there is no such device.
    """
    found = find_device(device)
    records: list[Record] = []
    for requests in batches:
        shaken = min(_SHAKEN, output) if requests == max(batches) else 0
        job = Job(requests, prompt, output, eager=eager, shaken=shaken)
        record = measure(mini_arch(), found, job, ops)
        records.append(record | environment(found.torch))
        print(json_text.dumps(records[-1]) if json else _line(record), flush=True)
    return records


def _line(record: Record) -> str:
    expected = ""
    if "as_expected" in record:
        expected = f", expected {record['behind_equal_expected']:.3f}"
    return (
        f"{record['name']:22} {record['tokens_per_second']:9.1f} tokens/s, eager reference "
        f"{record['eager_tokens_per_second']:8.1f} ({record['eager_seconds_are']}): "
        f"{record['ratio']:.1f} x; tokens equal {record['equal']} "
        f"({record['equal_tokens_asked']} asked, differences up to a gap of "
        f"{record['largest_gap_at_a_difference']:.3f}; behind equal ones "
        f"{record['behind_equal']:.3f}{expected}); hit rate {record['hit_rate']:.3f} (real), "
        f"once more {record['again_hit_rate']:.3f}: {record['again_tokens_per_second']:.1f} "
        f"tokens/s, the same tokens {record['again_equal']}"
    )
