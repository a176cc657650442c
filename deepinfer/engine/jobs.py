"""The offline job: lines of JSON in, one record a line out, whatever happens to a single one.

Knows how lines are read and records are written, and how an interrupted job is taken up again.
Does not know how answers are computed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from deepinfer.engine.border import Prompt
from deepinfer.engine.outputs import ENGINE_DIED
from deepinfer.errors import ConfigError, RequestError
from deepinfer.request import (
    CompletionOutput,
    RequestOutput,
    SamplingParams,
    ScoreOutput,
    StructuredOutputsParams,
)

Record = dict[str, object]
_PROMPT_KEYS = ("prompt", "prompt_token_ids")
_PARAMS = frozenset(SamplingParams.__dataclass_fields__)


@dataclass(frozen=True)
class Job:
    """One line of a batch file.

    Attributes:
        index: number of the line among those that are not blank.
        name: the line's `id`, or its index.
        prompt: text or ids, None if the line could not be read.
        params: sampling values.
        priority: smaller goes first.
        error: why the line cannot be run, or None.
    """

    index: int
    name: str
    prompt: Prompt | None
    params: SamplingParams
    priority: int = 0
    error: str | None = None


def parse_lines(
    lines: Iterable[str], defaults: SamplingParams, *, scoring: bool = False
) -> Iterator[Job]:
    """Read JSON lines: an object with `prompt` (text) or `prompt_token_ids`, or a plain string.

    An object may hold `id`, `priority` and any field of `SamplingParams`; with `scoring` only
    `id`. Blank lines are passed over; a line that cannot be read becomes a job with its error.
    """
    filled = (line for line in lines if line.strip())
    for index, line in enumerate(filled):
        name = str(index)
        try:
            data: object = json.loads(line)
            if isinstance(data, dict):
                name = str(cast("Record", data).get("id", name))
            yield _job(index, name, data, defaults, scoring)
        except json.JSONDecodeError as error:
            yield Job(index, name, None, defaults, error=f"the line is not JSON: {error}")
        except RequestError as error:
            yield Job(index, name, None, defaults, error=str(error))


def _job(index: int, name: str, data: object, defaults: SamplingParams, scoring: bool) -> Job:
    if isinstance(data, str):
        return Job(index, name, data, defaults)
    if not isinstance(data, dict):
        raise RequestError(f"expected an object or a string, found {type(data).__name__}")
    fields = cast("Record", data)
    allowed = {*_PROMPT_KEYS, "id"} | (set() if scoring else {"priority", *_PARAMS})
    if unknown := sorted(set(fields) - allowed):
        raise RequestError(f"unknown key(s) {unknown}; known are {sorted(allowed)}")
    given = [key for key in _PROMPT_KEYS if key in fields]
    if len(given) != 1:
        raise RequestError("give exactly one of 'prompt' and 'prompt_token_ids'")
    priority = fields.get("priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RequestError(f"priority {priority!r} is not an integer")
    prompt = _prompt(given[0], fields[given[0]])
    values = {key: value for key, value in fields.items() if key in _PARAMS}
    return Job(index, name, prompt, _params(defaults, values), priority)


def _prompt(key: str, value: object) -> Prompt:
    if key == "prompt":
        if not isinstance(value, str):
            raise RequestError(f"prompt is not a string but {type(value).__name__}")
        return value
    if not isinstance(value, list) or not all(
        isinstance(i, int) and not isinstance(i, bool) for i in cast("list[object]", value)
    ):
        raise RequestError("prompt_token_ids is not a list of integers")
    return tuple(cast("list[int]", value))


def _params(defaults: SamplingParams, values: Mapping[str, object]) -> SamplingParams:
    """`defaults` with some values replaced and checked."""
    bias, form = values.get("logit_bias"), values.get("structured_outputs")
    if isinstance(bias, dict):  # JSON has no integer keys
        values = dict(values) | {"logit_bias": _biases(cast("Record", bias))}
    if values.keys() & {"structured_outputs", "so_args"}:  # either goes before the defaults of both
        values = {"structured_outputs": None, "so_args": None} | dict(values)
    try:
        if isinstance(form, dict):
            own = StructuredOutputsParams(**cast("dict[str, Any]", form))
            values = dict(values) | {"structured_outputs": own}
        return dataclasses.replace(defaults, **values)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise RequestError(f"sampling values {dict(values)}: {error}") from error


def _biases(bias: Record) -> dict[int, object]:
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError as error:
        raise RequestError(f"logit_bias: a key is no token id: {error}") from error


def generated(job: Job, output: RequestOutput) -> Record:
    """The record of an answer."""
    record = _head(job) | {"prompt_token_ids": output.prompt_token_ids}
    if output.error is not None:
        record["error"] = output.error
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [_entries(e) for e in output.prompt_logprobs]
    if not output.outputs:
        return record
    if job.params.n == 1:
        return record | _completion(output.outputs[0])
    return record | {"outputs": [_completion(c) for c in output.outputs]}


def _completion(completion: CompletionOutput) -> Record:
    record: Record = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "seed": completion.seed,
    }
    for name in ("message", "structured", "violation"):
        if (value := getattr(completion, name)) is not None:
            record[name] = value
    if completion.logprobs is not None:
        record["cumulative_logprob"] = completion.cumulative_logprob
        record["logprobs"] = [_entries(e) for e in completion.logprobs]
    return record


def _entries(entries: object) -> object:
    if entries is None:
        return None
    found = cast("Mapping[int, tuple[float, int, str | None]]", entries)
    return {str(token): list(entry) for token, entry in found.items()}


def scored(job: Job, output: ScoreOutput) -> Record:
    """The record of a score."""
    record = _head(job) | {"prompt_token_ids": output.prompt_token_ids}
    if output.error is not None:
        return record | {"error": output.error}
    return record | {
        "logprobs": output.logprobs,
        "logprob_sum": output.logprob_sum,
        "perplexity": output.perplexity,
    }


def _head(job: Job) -> Record:
    record: Record = {"index": job.index, "id": job.name}
    return record | {"prompt": job.prompt} if isinstance(job.prompt, str) else record


class AnswerFile:
    """The output of a job: a line as soon as an answer is there, in order at the end.

    A killed job leaves whole lines and perhaps a piece of one; `resume` keeps the former.

    Args:
        path: the file.
        resume: go on with what the file holds, instead of starting anew.

    Raises:
        ConfigError: the file cannot be written, or (resuming) it is not the output of such a job.
    """

    def __init__(self, path: Path, *, resume: bool):
        self.path = path
        self._lines: dict[int, str] = {}
        try:
            if resume and path.exists():
                self._lines = _finished(path)
                self._replace()
            self._file: TextIO = path.open("a" if resume else "w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error}") from error

    def done(self, job: Job) -> bool:
        """Whether the file holds the answer of a job.

        Raises:
            ConfigError: it holds one of another prompt under the same index.
        """
        line = self._lines.get(job.index)
        if line is None:
            return False
        record: Record = json.loads(line)
        same = _head(job).items() <= record.items()
        if not same or (
            not isinstance(job.prompt, str)
            and job.prompt is not None
            and list(cast("tuple[int, ...]", job.prompt)) != record.get("prompt_token_ids")
            and "error" not in record
        ):
            raise ConfigError(
                f"{self.path}: line {job.index} belongs to another input; remove the file or do "
                "not resume"
            )
        return True

    def write(self, record: Record) -> None:
        """Append an answer; it is on its way to the disk when this returns."""
        line = json.dumps(record, ensure_ascii=False)
        self._lines[cast("int", record["index"])] = line
        self._file.write(line + "\n")
        self._file.flush()

    def close(self, *, ordered: bool) -> None:
        """Close the file; `ordered` puts the lines in the order of the input."""
        self._file.close()
        if ordered:
            self._replace()

    def _replace(self) -> None:
        """Write all lines in order, in one step as others see it."""
        aside = self.path.with_name(self.path.name + ".part")
        text = "".join(self._lines[index] + "\n" for index in sorted(self._lines))
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, self.path)


def _finished(path: Path) -> dict[int, str]:
    """Whole lines of an earlier run by index; a torn last line is dropped.

    So are those that the engine did not live to answer: they are asked again.
    """
    found: dict[int, str] = {}
    pieces = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for line in pieces[:-1]:  # what follows the last newline is torn or empty
        try:
            record = json.loads(line)
            index, died = record["index"], str(record.get("error")).startswith(ENGINE_DIED)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: not the output of such a job: {line[:80]!r}") from error
        if not died:
            found[index] = line
    return found
