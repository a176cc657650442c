"""`LLM`: the offline engine under the names that vLLM's users know.

Knows nothing of HTTP.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from tqdm import tqdm

from deepinfer.engine.border import Prompt
from deepinfer.engine.build import build_service
from deepinfer.engine.core import Recorder, Runner
from deepinfer.engine.options import options_from
from deepinfer.engine.outputs import failed
from deepinfer.engine.resolve import resolve_model
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import ConfigError, DeepinferError, RequestError
from deepinfer.request import RequestOutput, SamplingParams, ScoreOutput


class LLM:
    """A model that answers batches of prompts.

    Args:
        model: a checkpoint directory, or a built-in name.
        tokenizer: directory of another `tokenizer.json`; None takes the model's own.
        builtin: built-in names and what makes their directory ready (the command line passes
            `nano`).
        recorder: told of every plan and result (see `engine.record.FileRecorder`).
        verbose: print the memory plan and start-up times to standard error.
        options: `device` ("auto"), `max_model_len` (None: what config and memory allow),
            `max_num_seqs` (256), `max_num_batched_tokens` (8192), `kv_cache_memory_bytes` (None: a
            fraction of free memory), `gpu_memory_utilization` (0.9), `seed` (0, of requests
            without one), `load_format` ("auto" or "dummy"), `numerics` ("checkpoint" or
            "noquant"), `engram` ("device", "host", "disk"), `ops` (operation -> implementation),
            `async_scheduling` (True), `policy` ("throughput" or "latency"), `decoder_keep` (None:
            every prompt token runs all layers), `max_logprobs` (20).

    Raises:
        DeepinferError: the model cannot be loaded as asked for, or an option is unknown.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        builtin: Mapping[str, Callable[[], Path]] | None = None,
        verbose: bool = False,
        recorder: Recorder | None = None,
        **options: object,
    ):
        chosen = options_from(options)
        directory = resolve_model(str(model), builtin or {})
        text = None if tokenizer is None else Path(tokenizer)
        built = build_service(directory, chosen, tokenizer=text, recorder=recorder)
        self.options = chosen
        self.memory = built.memory
        self._service = built.service
        self._counter = 0
        self._failure: BaseException | None = None
        if verbose:
            for line in (*built.memory.lines(), *built.phases):
                sys.stderr.write(line + "\n")

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        on_output: Callable[[int, RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts.

        Args:
            prompts: one prompt or a list; a prompt is text, a list of ids, `{"prompt": text}` or
                `{"prompt_token_ids": ids}`.
            sampling_params: one for all, or one a prompt; None means `SamplingParams()`.
            use_tqdm: show progress on standard error.
            priority: one a prompt, smaller goes first.
            on_output: called with (place, result) as soon as a result is finished.

        Returns:
            One result a prompt, in order; what is wrong with one prompt is in its `error`.

        Raises:
            ValueError: lists of different length.
        """
        items = _as_list(prompts)
        params = _one_each("sampling_params", sampling_params, len(items), SamplingParams())
        ranks = _one_each("priority", priority, len(items), 0)
        self._check_alive()
        results: list[RequestOutput | None] = [None] * len(items)
        places: dict[str, int] = {}

        def finish(place: int, output: RequestOutput) -> None:
            results[place] = output
            bar.update()
            if on_output is not None:
                on_output(place, output)

        with tqdm(total=len(items), unit="prompt", disable=not use_tqdm or None) as bar:
            try:
                for place, prompt in enumerate(items):
                    name = self._name()
                    try:
                        self._service.add(name, prompt, params[place], priority=ranks[place])
                        places[name] = place
                    except RequestError as error:
                        finish(place, failed(name, prompt, str(error)))
                while not self._service.idle:
                    for output in self._service.step():
                        if output.finished:
                            finish(places.pop(output.request_id), output)
            except KeyboardInterrupt:
                self._abandon(places)
                raise
            except BaseException as error:
                self._failure = error
                raise
        return cast("list[RequestOutput]", results)

    def score(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[ScoreOutput]:
        """Natural log-probability of every prompt token after the first.

        Args:
            prompts: as in `generate`.
            use_tqdm: show progress on standard error.

        Returns:
            One result a prompt, in order; what is wrong with one prompt is in its `error`.
        """
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        outputs = self.generate(prompts, params, use_tqdm=use_tqdm)
        return [_scored(output) for output in outputs]

    def chat(self, *_args: object, **_kwargs: object) -> list[RequestOutput]:
        """Not there yet: conversations need the codec.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("chat needs the conversation codec, which is not there yet; use generate")

    def get_tokenizer(self) -> TextTokenizer:
        """The text border's tokenizer.

        Raises:
            ConfigError: the model has none.
        """
        tokenizer = self._service.border.tokenizer
        if tokenizer is None:
            raise ConfigError("this model has no tokenizer.json")
        return tokenizer

    @property
    def runner(self) -> Runner:
        """What computes plans; for replaying traces on a fresh engine."""
        return self._service.core.runner

    def get_metrics(self) -> dict[str, int]:
        """Counters of the scheduler; see `scheduler.Snapshot`."""
        return self._service.core.scheduler.snapshot()._asdict()

    def close(self) -> None:
        """Let go of weights and state; the object cannot be used afterwards."""
        self._failure = DeepinferError("this LLM is closed")
        del self._service

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._failure is None:
            self.close()

    def _name(self) -> str:
        self._counter += 1
        return str(self._counter - 1)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise DeepinferError(
                f"this engine ended with {type(self._failure).__name__}: {self._failure}; make a "
                "new one"
            )

    def _abandon(self, places: Mapping[str, int]) -> None:
        """End what runs, so that the next call starts clean."""
        for name in places:
            self._service.abort(name)
        deadline = time.monotonic() + 60
        while not self._service.idle and time.monotonic() < deadline:
            for _output in self._service.step():
                pass


def _scored(output: RequestOutput) -> ScoreOutput:
    ids = output.prompt_token_ids
    if output.error is not None:
        return ScoreOutput(output.request_id, ids, (), output.error)
    entries = output.prompt_logprobs or ()
    values = [e[token].logprob for token, e in zip(ids, entries, strict=True) if e is not None]
    return ScoreOutput(output.request_id, ids, tuple(values))


def _as_list(prompts: object) -> list[Prompt]:
    """One prompt or many: text, a mapping or a flat list of ids is one."""
    if isinstance(prompts, (str, Mapping)):
        return [cast("Prompt", prompts)]
    if not isinstance(prompts, Sequence):
        raise RequestError(f"prompts of type {type(prompts).__name__}: use a prompt or a list")
    items = list(cast("Sequence[object]", prompts))
    if items and all(isinstance(item, int) for item in items):
        return [cast("Prompt", items)]
    return cast("list[Prompt]", items)


def _one_each(name: str, values: object, count: int, default: object) -> list:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
    if values is None:
        return [default] * count
    if not isinstance(values, Sequence):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} {name} for {count} prompts; give one, or one a prompt")
    return list(values)
