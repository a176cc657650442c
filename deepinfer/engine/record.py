"""Traces and statistics of a running engine as JSON lines, and replaying a trace.

A trace has plans, grammar masks, digests of results, requests and their answers. Knows nothing of
text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np

from deepinfer.engine.core import Runner
from deepinfer.engine.recorded_masks import masks_of, masks_record, of_tokens
from deepinfer.errors import ConfigError
from deepinfer.request import Request, SamplingParams
from deepinfer.scheduler import Progress, Snapshot
from deepinfer.step import StepMasks, StepPlan, StepResult

_ARRAYS = ("row", "verified", "accepted", "tokens", "flags")


def result_digest(result: StepResult) -> str:
    """A digest of what a step generated; times and confidences left out."""
    digest = hashlib.sha256()
    for name in _ARRAYS:
        array = np.ascontiguousarray(getattr(result, name), dtype=np.int32)
        digest.update(str(array.shape).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


@dataclass
class Answer:
    """What a request generated, and how.

    Attributes:
        token_ids: generated ids, an end or stop id included.
        logprobs: of each, as the request asked for them; [] if it did not.
        drafts: for every step that generated for it: its number, drafts verified and accepted.
        masks: of each token of a constrained request, which ids might come; None = any.
        finish_reason: why it ended, None if the recording ended first.
    """

    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    drafts: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    masks: list[str | None] = field(default_factory=list[str | None])
    finish_reason: str | None = None

    def push(self, news: Progress, result: StepResult, masks: StepMasks | None) -> None:
        """Take the news of a step and what its grammars said."""
        self.token_ids += news.token_ids
        self.finish_reason = news.finish_reason
        place, count = news.place, len(news.token_ids)
        if place < 0:  # ended from outside
            return
        checked, right = int(result.verified[place]), int(result.accepted[place])
        self.drafts.append((result.number, checked, right))
        self.masks += of_tokens(masks, int(result.row[place]), count)
        if result.logprobs is not None:
            self.logprobs += result.logprobs.chosen[place, :count].tolist()


class FileRecorder:
    """Writes a trace (requests, plans, digests of results, answers) and step statistics.

    Args:
        trace: file of `{"request": ...}`, `{"plan": ...}`, `{"number", "masks"}`, `{"number",
            "digest"}` and `{"answer": ...}` lines, or None.
        statistics: file of one record a step, or None.

    Raises:
        ConfigError: a file cannot be written.
    """

    def __init__(self, trace: Path | None, statistics: Path | None):
        self._trace = _open(trace)
        self._statistics = _open(statistics)
        self._plans: dict[int, StepPlan] = {}
        self._masks: dict[int, StepMasks] = {}
        self._requests: dict[str, Request] = {}
        self._answers: dict[str, Answer] = {}

    def request(self, request: Request) -> None:
        """Write a request."""
        if self._trace is not None:
            self._requests[request.request_id] = request
            self._answers[request.request_id] = Answer()
            self._trace.write(json.dumps({"request": request_record(request)}) + "\n")

    def plan(self, plan: StepPlan) -> None:
        """Write a plan."""
        self._plans[plan.number] = plan
        if self._trace is not None:
            self._trace.write(f'{{"plan": {plan.to_json()}}}\n')

    def masks(self, number: int, masks: StepMasks) -> None:
        """Write what the grammars of a step allow."""
        self._masks[number] = masks
        if self._trace is not None:
            line = {"number": number, "masks": masks_record(masks)}
            self._trace.write(json.dumps(line) + "\n")

    def result(self, result: StepResult, counters: Snapshot, progress: Sequence[Progress]) -> None:
        """Write what came of it."""
        plan, masks = self._plans.pop(result.number), self._masks.pop(result.number, None)
        if self._trace is not None:
            line = {"number": result.number, "digest": result_digest(result)}
            self._trace.write(json.dumps(line) + "\n")
            for news in progress:
                self._answer(news, result, masks, self._trace)
            self._trace.flush()
        if self._statistics is not None:
            record = {
                "step": result.number,
                "seconds": round(result.seconds, 6),
                "prefill_tokens": sum(item.length for item in plan.prefill),
                "rows": len(result.row),
                "generated_now": int(result.generated.sum()),
                "drafts_verified_now": int(result.verified.sum()),
                "drafts_accepted_now": int(result.accepted.sum()),
                **counters._asdict(),
            }
            self._statistics.write(json.dumps(record) + "\n")
            self._statistics.flush()

    def _answer(
        self, news: Progress, result: StepResult, masks: StepMasks | None, file: TextIO
    ) -> None:
        answer = self._answers[news.request_id]
        answer.push(news, result, masks)
        if news.finish_reason is not None:
            self._write_answer(news.request_id, file)

    def _write_answer(self, name: str, file: TextIO) -> None:
        request, answer = self._requests.pop(name), self._answers.pop(name)
        if request.params.logprobs is None:
            answer.logprobs = []  # another request asked
        if not request.constrained:
            answer.masks = []
        file.write(json.dumps({"answer": {"id": name, **asdict(answer)}}) + "\n")

    def close(self) -> None:
        """Write what requests without an end have so far, and close the files."""
        if self._trace is not None:
            for name in list(self._requests):
                self._write_answer(name, self._trace)
        for file in (self._trace, self._statistics):
            if file is not None:
                file.close()


def _open(path: Path | None) -> TextIO | None:
    if path is None:
        return None
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error


_PLAIN = tuple(
    item.name
    for item in fields(SamplingParams)
    if item.name not in ("structured_outputs", "so_args")
)


def request_record(request: Request) -> dict[str, Any]:
    """A request as plain data; of its constraint only that it has one: the trace has its masks."""
    params = {name: _plain(getattr(request.params, name)) for name in _PLAIN}
    return {
        "id": request.request_id,
        "prompt_token_ids": request.prompt_token_ids,
        "params": params,
        "seed": request.seed,
        "sample": request.sample,
        "stop_ids": sorted(request.stop_ids),
        "bad_words": request.bad_words,
        "constrained": request.constrained,
    }


def _plain(value: object) -> object:
    """Sequences and mappings of any kind as JSON has them."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(cast("Sequence[object]", value))
    return value


def request_of(record: dict[str, Any]) -> Request:
    """The request of `request_record`, without its constraint."""
    params = dict(record["params"])
    if params["logit_bias"] is not None:
        params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
    return Request(
        request_id=record["id"],
        prompt_token_ids=tuple(record["prompt_token_ids"]),
        params=SamplingParams(**params),
        seed=record["seed"],
        sample=record["sample"],
        stop_ids=frozenset(record["stop_ids"]),
        bad_words=tuple(tuple(word) for word in record["bad_words"]),
    )


class Recorded(NamedTuple):
    """A request of a trace and its answer; whether a constraint said which tokens may come."""

    request: Request
    answer: Answer
    constrained: bool


def read_requests(path: Path) -> dict[str, Recorded]:
    """Requests that were answered, by name; of a name that came again the last one.

    Raises:
        ConfigError: the file cannot be read as a trace.
    """
    found: dict[str, Recorded] = {}
    asked: dict[str, dict[str, Any]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            data = json.loads(line)
            if "request" in data:
                asked[data["request"]["id"]] = data["request"]
            elif "answer" in data:
                answer = dict(data["answer"])
                record = asked[answer.pop("id")]
                constrained = record["constrained"]
                found[record["id"]] = Recorded(request_of(record), Answer(**answer), constrained)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a trace: {error}") from error
    return found


class Difference(NamedTuple):
    """A step whose result is not the recorded one."""

    number: int
    recorded: str
    found: str


class Trace(NamedTuple):
    """Plans in order, digests of results and grammar masks by step number."""

    plans: list[StepPlan]
    digests: dict[int, str]
    masks: dict[int, StepMasks]


def read_trace(path: Path) -> Trace:
    """The steps of a trace.

    Raises:
        ConfigError: the file cannot be read as a trace.
    """
    trace = Trace([], {}, {})
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            data = json.loads(line)
            if "plan" in data:
                trace.plans.append(StepPlan.from_json(json.dumps(data["plan"])))
            elif "digest" in data:
                trace.digests[data["number"]] = data["digest"]
            elif "masks" in data:
                trace.masks[data["number"]] = masks_of(data["masks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a trace: {error}") from error
    return trace


def replay(trace: Trace, runner: Runner) -> Iterator[Difference | None]:
    """Run recorded plans on a fresh runner; yields one entry a step, None if equal.

    A step without a recorded result (the run was cut off) counts as equal.

    Raises:
        ConfigError: a step had constrained requests, whose masks older traces do not have.
    """
    for plan in trace.plans:
        masks = trace.masks.get(plan.number)
        if plan.masked and (masks is None or not masks.covers(plan.masked)):
            raise ConfigError(
                f"step {plan.number} had grammar masks, which are not in the trace; record it anew"
            )
        runner.forward(plan)
        runner.sample(plan.number, masks)
        runner.draft(plan.number)
        found = result_digest(runner.collect(plan.number))
        recorded = trace.digests.get(plan.number, found)
        yield None if found == recorded else Difference(plan.number, recorded, found)
