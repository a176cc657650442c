"""`LLM`: the offline engine under the names that vLLM's users know.

Knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from deepinfer.engine.border import Prompt
from deepinfer.engine.build import build_service
from deepinfer.engine.chat import ChatCodec, ChatPrompt
from deepinfer.engine.core import EngineCore, Recorder, Runner
from deepinfer.engine.inputs import (
    Conversation,
    Job,
    as_list,
    conversations,
    one_each,
    prompt_of,
    scored,
)
from deepinfer.engine.options import options_from
from deepinfer.engine.outputs import died, failed
from deepinfer.engine.resolve import resolve_model
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import ConfigError, DeepinferError, RequestError
from deepinfer.request import RequestOutput, SamplingParams, ScoreOutput

_LOG = logging.getLogger(__name__)


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
            `async_scheduling` (True), `policy` ("throughput" or "latency"), `decoder_replay`
            ("compact": the last `decoder_keep` prompt tokens run the decoder layers, as the model
            was trained; "mask", the same numbers computed for all; "exact" or "off" give those of
            running all), `enable_prefix_caching` (True), `deterministic` (True: a cached prefix
            changes no number), `window_snapshot_bytes` (256 MiB of host memory, so that a cached
            prefix needs no replay), `speculative_config` (None; see `engine.speculative`),
            `max_logprobs` (20), `enforce_eager` (False),
            `cudagraph_capture_sizes` (rows of captured decoding steps; given: captured at the
            start; None: chosen for `max_num_seqs`, captured when a step comes twice),
            `step_timeout_s` (None; seconds after which a step is named in the log).

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
        self._tokenizer_directory = text or directory
        self._codec: ChatCodec | None = None
        self._service = built.service
        self._counter = 0
        self._failure: BaseException | None = None
        self._delivered: list[RequestOutput] = []  # by the step at hand
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
            One result a prompt, in order; what is wrong with one prompt is in its `error`. If the
            engine dies, so is that for every prompt which has no result yet, beside what was
            generated for it; the log has the traceback and the next call raises.

        Raises:
            ValueError: lists of different length.
            Exception: what killed the engine, if no prompt had a result, so that nothing is lost.
        """
        items = as_list(prompts)
        params = one_each("sampling_params", sampling_params, len(items), SamplingParams())
        ranks = one_each("priority", priority, len(items), 0)
        jobs = [Job(*item) for item in zip(items, params, ranks, strict=True)]
        return self._serve(jobs, use_tqdm, on_output)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        use_tqdm: bool = True,
        on_output: Callable[[int, RequestOutput], None] | None = None,
        **request: Any,
    ) -> list[RequestOutput]:
        """Answer conversations.

        Args:
            messages: one conversation or a list; a conversation is a list of messages in the form
                of chat completions (`{"role": "user", "content": "..."}`).
            sampling_params: as in `generate`; None takes the model's own values for its mode.
            tools: functions that the model may call, in the form of chat completions.
            use_tqdm: show progress on standard error.
            on_output: as in `generate`.
            request: other fields of chat completions: `tool_choice`, `thinking`,
                `reasoning_effort`, `response_format`.

        Returns:
            One result a conversation, in order; `message` of a completion has what the text says.
            What is wrong with one conversation is in its `error`.

        Raises:
            ConfigError: the model has no tokenizer.
        """
        self._check_alive()
        items = conversations(messages)
        params = one_each("sampling_params", sampling_params, len(items), None)
        codec = self._chat_codec()
        body = {**request} if tools is None else {**request, "tools": list(tools)}
        prompts: list[ChatPrompt | None] = []
        jobs: list[Job | RequestError] = []
        for item, given in zip(items, params, strict=True):
            try:
                prompt = codec.prompt({**body, "messages": item})
                chosen = codec.params(prompt, given, self._service.border.max_model_len)
                jobs.append(Job(prompt.tokens, chosen, demand=codec.demand(prompt)))
                prompts.append(prompt)
            except RequestError as error:
                jobs.append(error)
                prompts.append(None)

        def answer(place: int, output: RequestOutput) -> RequestOutput:
            prompt = prompts[place]
            return output if prompt is None else codec.answer(prompt, output)

        def tell(place: int, output: RequestOutput) -> None:
            if on_output is not None:
                on_output(place, answer(place, output))

        outputs = self._serve(jobs, use_tqdm, tell)
        return [answer(place, output) for place, output in enumerate(outputs)]

    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **request: Any,
    ) -> Generator[dict[str, Any], None, None]:
        """Answer one conversation; yields deltas in the form of chat completions as they come.

        Leaving the iterator early ends the answer. Arguments are those of `chat`, `n` is 1.

        Raises:
            RequestError: the conversation cannot be answered.
        """
        self._check_alive()
        codec = self._chat_codec()
        body = {**request} if tools is None else {**request, "tools": list(tools)}
        prompt = codec.prompt({**body, "messages": messages})
        params = codec.params(prompt, sampling_params, self._service.border.max_model_len)
        if params.n != 1:
            raise RequestError(f"n {params.n}: an answer that is streamed is one; use chat")
        reader, name, seen = codec.reader(prompt), self._name(), 0
        self._service.add(name, prompt.tokens, params, demand=codec.demand(prompt))
        left = [name]
        try:
            while left:
                for output in self._service.step():
                    left = [] if output.finished else left
                    if output.error is not None:
                        raise RequestError(output.error)
                    text = output.outputs[0].text
                    yield from reader.push(text[seen:])
                    seen = len(text)
                    if output.finished:
                        yield from reader.finish(output.outputs[0].finish_reason)
        except (RequestError, KeyboardInterrupt, GeneratorExit):
            self._abandon(left)
            raise
        except BaseException as error:
            self._failure = error
            raise
        self._abandon(left)

    def _serve(
        self,
        jobs: Sequence[Job | RequestError],
        use_tqdm: bool,
        on_output: Callable[[int, RequestOutput], None] | None,
    ) -> list[RequestOutput]:
        """Run jobs, or pass on why one cannot be; one result each, in order."""
        self._check_alive()
        results: list[RequestOutput | None] = [None] * len(jobs)
        places: dict[str, int] = {}

        def finish(place: int, output: RequestOutput) -> None:
            results[place] = output
            bar.update()
            if on_output is not None:
                on_output(place, output)

        with tqdm(total=len(jobs), unit="prompt", disable=not use_tqdm or None) as bar:
            try:
                for place, job in enumerate(jobs):
                    name = self._name()
                    try:
                        if isinstance(job, RequestError):
                            raise job
                        prompt, params, priority, demand = job
                        self._service.add(name, prompt, params, priority=priority, demand=demand)
                        places[name] = place
                    except RequestError as error:
                        finish(place, failed(name, prompt_of(job), str(error)))
                while not self._service.idle:
                    for output in self._step():
                        if output.finished:
                            finish(places.pop(output.request_id), output)
            except BaseException as error:
                if error is not self._failure:  # an interrupt, or a bug in `on_output`
                    self._abandon(places)
                    raise
                if len(places) == len(jobs) or not isinstance(error, Exception):
                    raise
                _LOG.error("the engine died; %d prompts get the error", len(places), exc_info=error)
                last = (*self._delivered, *self._service.last_words(error))
                words = {output.request_id: output for output in last if output.finished}
                for name, place in places.items():
                    output = words.get(name) or died(name, prompt_of(jobs[place]), error)
                    finish(place, output)
        return cast("list[RequestOutput]", results)

    def _step(self) -> list[RequestOutput]:
        """Compute one step; whatever goes wrong in it, but an interrupt, ends this engine."""
        self._delivered = []
        try:
            for output in self._service.step(unfinished=False):
                self._delivered.append(output)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failure = error
            raise
        return self._delivered

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
        return [scored(output) for output in outputs]

    def _chat_codec(self) -> ChatCodec:
        if self._codec is None:
            self.get_tokenizer()  # says what is missing
            self._codec = ChatCodec(self._tokenizer_directory)
        return self._codec

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

    @property
    def core(self) -> EngineCore:
        """The loop without text; for running recorded requests again."""
        return self._service.core

    def get_metrics(self) -> dict[str, Any]:
        """Counters of the scheduler, those of drafts included; see `scheduler.Snapshot`.

        And `masks_late`: grammar masks that were not ready in time.
        """
        core = self._service.core
        return {**core.scheduler.snapshot()._asdict(), "masks_late": core.masks.late}

    def reset_prefix_cache(self) -> None:
        """Forget what later prompts could share; needed after a change of anything but tokens."""
        self._service.core.scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Let go of weights and state; the object cannot be used afterwards."""
        self._failure = DeepinferError("this LLM is closed")
        self._service.close()
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

    def _abandon(self, places: Iterable[str]) -> None:
        """End what runs, so that the next call starts clean."""
        for name in places:
            self._service.abort(name)
        deadline = time.monotonic() + 60
        while not self._service.idle and time.monotonic() < deadline:
            for _output in self._service.step():
                pass
