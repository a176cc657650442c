"""Requests of every kind for one engine, and a loop that serves them with aborts in between.

`python -m tests.gpu.mixed` computes what a CPU answers without quantisers, and stores it.
"""

import dataclasses
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.arch import PageLayout, Records, SlotLayout, load_arch
from deepinfer.engine.build import build_service
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.record import FileRecorder
from deepinfer.engine.service import Service
from deepinfer.nano.build import TRAINED, nano_directory
from deepinfer.nano.corpus import corpus
from deepinfer.request import RequestOutput, SamplingParams, StructuredOutputsParams

STORED = Path(__file__).parents[1] / "golden_data" / "mixed_noquant.json"
COUNT, ROWS, FEW_PAGES = 500, 64, 40
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", 3]}},
    "required": ["n", "b"],
    "additionalProperties": False,
}
# What the kinds of requests have beside their lengths.
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"stop": ["e", " the"], "include_stop_str_in_output": True},
    {"stop_token_ids": list(range(3, 900, 9))},
    {"structured_outputs": StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)},
    {"min_tokens": 6, "stop": ["a"]},
    {"structured_outputs": StructuredOutputsParams(regex="[a-f]{2,5}-[0-9]{2}")},
    {"logit_bias": {300: 4.0, 301: -7.0}, "bad_words": ["the", "is"]},
    {"structured_outputs": StructuredOutputsParams(choice=["yes", "no", "not at all"])},
    {"allowed_token_ids": list(range(5, 1200, 2)), "repetition_penalty": 0.9},
    {"ignore_eos": True, "logit_bias": {1: 3.0}},
    {"prompt_logprobs": 0},
)


class Asked(NamedTuple):
    """A request; it is aborted once it has generated `abort` tokens (0: at once; None: never)."""

    prompt: str | list[int]
    params: SamplingParams
    abort: int | None


def asked(count: int, *, drawn: bool = False) -> list[Asked]:
    """Many requests: some begin with one of a few long texts, so that pages are shared; the first
    ones need another page while they answer.

    Greedy all of them, or two thirds drawn if `drawn`.
    """
    source = random.Random(5)
    texts = corpus(5).split("\n\n")
    long = ["\n\n".join(texts[i::9])[: 420 + 110 * i] for i in range(4)]
    found: list[Asked] = []
    for i in range(count):
        first = source.choice(long) if source.random() < 0.35 else ""
        tail = source.choice(texts)[: source.randint(2, 70)]
        prompt: str | list[int] = first + tail
        if i < count // 8:  # fill a page nearly, and grow into another one together
            prompt = [(53 * i + 7 * k * k + 11 * k) % 1500 + 10 for k in range(119 + i % 8)]
        length = source.randint(7, 24)
        params = SamplingParams(
            temperature=(0.0, 0.8, 1.2)[i % 3] if drawn else 0.0,
            seed=i,
            max_tokens=24 if isinstance(prompt, list) else length,
            logprobs=20,
            **KINDS[i % len(KINDS)],
        )
        abort = source.choice((0, 1, 3, 6)) if source.random() < 0.1 else None
        found.append(Asked(prompt, params, abort))
    return found


def memory(nano, *, pages: int, rows: int, quantised: bool) -> int:
    """Bytes that hold so many pages and rows."""
    arch = load_arch(nano)
    records = Records.of(arch, quantised=quantised)
    page, slot = PageLayout.of(arch, records).bytes, SlotLayout.of(arch, records).bytes
    return (pages + 1) * page + (rows + 5) * slot


def serve(service: Service, requests: Sequence[Asked], at_once: int) -> list[RequestOutput]:
    """One result each, in order, with `at_once` requests in the engine as long as there are more.

    Asserts that nobody is answered twice, and that the planner's books are in order.
    """
    waiting = list(reversed(list(enumerate(requests))))
    done: dict[int, RequestOutput] = {}
    steps = 0
    while waiting or not service.idle:
        while waiting and service.num_requests < at_once:
            place, item = waiting.pop()
            service.add(str(place), item.prompt, item.params)
            if item.abort == 0:
                assert service.abort(str(place))
        for output in service.step():
            place = int(output.request_id)
            assert place not in done, f"request {place} was answered twice"
            if output.finished:
                done[place] = output
                continue
            after = requests[place].abort
            if after is not None and len(output.outputs[0].token_ids) >= after:
                service.abort(output.request_id)
        steps += 1
        if steps % 16 == 0:
            assert service.core.scheduler.check() == []
    return [done[place] for place in range(len(requests))]


class Answer(NamedTuple):
    """What the CPU answered: ids, the log-probability of each, why it ended, the text; and of the
    prompt's tokens, if they were asked for."""

    tokens: list[int]
    logprobs: list[float]
    reason: str
    text: str
    prompt: list[float]

    @classmethod
    def of(cls, output: RequestOutput) -> "Answer":
        (completion,) = output.outputs
        pairs = zip(completion.token_ids, completion.logprobs or (), strict=True)
        ids = output.prompt_token_ids
        scores = zip(ids, output.prompt_logprobs or (), strict=False)
        return cls(
            list(completion.token_ids),
            [round(entries[token].logprob, 6) for token, entries in pairs],
            str(completion.finish_reason),
            completion.text,
            [round(entries[token].logprob, 6) for token, entries in scores if entries],
        )


def weights_digest() -> str:
    """Of the model's files and the requests, so that stored answers are those of both."""
    digest = hashlib.sha256(repr(asked(COUNT)).encode())
    for file in sorted(TRAINED.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def stored() -> list[Answer]:
    """The CPU's answers to `asked(COUNT)`, none aborted."""
    data = json.loads(STORED.read_text(encoding="utf-8"))
    assert data["digest"] == weights_digest(), "other weights or requests: store the answers anew"
    return [Answer(*answer) for answer in data["answers"]]


def engine(
    nano: Path,
    device: str,
    *,
    pages: int,
    numerics: str = "noquant",
    step_tokens: int = 1024,
    recorder: FileRecorder | None = None,
    **options: Any,
) -> Service:
    """A service over the trained embedded model."""
    chosen = EngineOptions(
        device=device,
        numerics=numerics,
        max_model_len=384,
        max_num_seqs=ROWS,
        max_num_batched_tokens=step_tokens,
        kv_cache_memory_bytes=memory(
            nano, pages=pages, rows=ROWS, quantised=numerics == "checkpoint"
        ),
        cudagraph_capture_sizes=None if options.get("enforce_eager") else (ROWS,),
        **options,
    )
    return build_service(nano, chosen, recorder=recorder).service


def served(
    nano: Path, requests: Sequence[Asked], **options: Any
) -> tuple[list[RequestOutput], dict[str, Any]]:
    """Results in order on the device, with too few pages, and the planner's counters."""
    service = engine(nano, "cuda", pages=FEW_PAGES, step_tokens=8192, **options)
    outputs = serve(service, requests, ROWS + 20)
    counters = service.core.scheduler.snapshot()._asdict()
    service.close()
    return outputs, counters


def by_cpu(requests: Sequence[Asked]) -> list[Answer]:
    """The CPU's answers, nobody aborted."""
    with tempfile.TemporaryDirectory() as place:
        service = engine(nano_directory(Path(place)), "cpu", pages=400, enforce_eager=True)
        whole = [item._replace(abort=None) for item in requests]
        outputs = serve(service, whole, ROWS)
        service.close()
    assert all(output.error is None for output in outputs)
    return [Answer.of(output) for output in outputs]


def bare(output: RequestOutput) -> object:
    """What a result says, times and cache hits left out."""
    return (
        output.error,
        output.prompt_logprobs,
        [dataclasses.replace(completion, message=None) for completion in output.outputs],
    )


def aborted_alike(first: RequestOutput, second: RequestOutput) -> bool:
    """Whether two results agree; of an aborted request, as far as both go."""
    if "abort" not in (o.outputs[0].finish_reason for o in (first, second)):
        return bare(first) == bare(second)
    pairs = zip(first.outputs[0].token_ids, second.outputs[0].token_ids, strict=False)
    return all(a == b for a, b in pairs)


def unlike(first: Sequence[RequestOutput], second: Sequence[RequestOutput]) -> list[int]:
    """Places of results that differ."""
    pairs = zip(first, second, strict=True)
    return [place for place, pair in enumerate(pairs) if not aborted_alike(*pair)]


if __name__ == "__main__":
    found: list[Answer] = []
    for low in range(0, COUNT, 100):
        found += by_cpu(asked(COUNT)[low : low + 100])
        sys.stderr.write(f"{len(found)} of {COUNT}\n")
    lines = ",\n".join(json.dumps(answer, ensure_ascii=False) for answer in found)
    text = f'{{"digest": "{weights_digest()}", "answers": [\n{lines}\n]}}\n'
    STORED.write_text(text, encoding="utf-8")
