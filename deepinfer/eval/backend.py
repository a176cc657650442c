"""Where answers come from: the protocol of back-ends, and the offline engine behind it.

Knows nothing of question sets, and nothing of chat formats beyond the codec's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from deepinfer.engine.border import Prompt
from deepinfer.errors import RequestError
from deepinfer.eval.question import Ask, Question, Reply, Settings
from deepinfer.request import RequestOutput, SamplingParams

Deliver = Callable[[int, Reply], None]
"""Takes the place of an ask in its list, and its reply. Called in the thread of `answer`."""


class Backend(Protocol):
    """Answers questions; what goes wrong with one becomes its reply's `error`."""

    def answer(self, asks: Sequence[Ask], deliver: Deliver) -> None:
        """Answer all of them, delivering each reply once, as soon as it is there."""
        ...


class Engine(Protocol):
    """The part of `LLM` that is used."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool = True,
        on_output: Callable[[int, RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """One result a prompt."""
        ...


class Codec(Protocol):
    """Turns a question into a prompt of the model, and what it wrote into a reply.

    Attributes:
        sampling: sampling values that reading needs, such as no text.
    """

    sampling: dict[str, Any]

    def prompt(self, question: Question, settings: Settings) -> Prompt:
        """The prompt.

        Raises:
            RequestError: the format cannot express the question.
        """
        ...

    def read(
        self, question: Question, settings: Settings, ids: Sequence[int], *, truncated: bool
    ) -> Reply:
        """Content, reasoning and calls of what the model wrote, without the end token."""
        ...


class OfflineBackend:
    """The offline engine.

    Args:
        engine: an `LLM`.
        codec: the prompt format.
        use_tqdm: show progress on standard error.
    """

    def __init__(self, engine: Engine, codec: Codec, *, use_tqdm: bool = True):
        self._engine = engine
        self._codec = codec
        self._use_tqdm = use_tqdm

    def answer(self, asks: Sequence[Ask], deliver: Deliver) -> None:
        """Answer all questions as one batch."""
        places: list[int] = []
        prompts: list[Prompt] = []
        params: list[SamplingParams] = []
        for place, ask in enumerate(asks):
            try:
                prompts.append(self._codec.prompt(ask.question, ask.settings))
            except RequestError as error:
                deliver(place, Reply(error=str(error)))
                continue
            places.append(place)
            params.append(
                SamplingParams(
                    max_tokens=ask.settings.max_tokens,
                    temperature=ask.settings.temperature,
                    top_p=ask.settings.top_p,
                    seed=ask.seed,
                    **self._codec.sampling,
                )
            )

        def finish(index: int, output: RequestOutput) -> None:
            place = places[index]
            deliver(place, self._reply(asks[place], output))

        if prompts:
            self._engine.generate(prompts, params, use_tqdm=self._use_tqdm, on_output=finish)

    def _reply(self, ask: Ask, output: RequestOutput) -> Reply:
        counts: dict[str, Any] = {
            "prompt_tokens": len(output.prompt_token_ids),
            "cached_tokens": output.num_cached_tokens,
        }
        times = output.metrics
        if times is not None and times.finished is not None:
            counts["seconds"] = times.finished - times.arrival
        if output.error is not None:
            return Reply(error=output.error, **counts)
        (completion,) = output.outputs
        if completion.finish_reason not in ("stop", "length"):
            return Reply(error=f"it ended by {completion.finish_reason}", **counts)
        ids = completion.token_ids
        ended = completion.finish_reason == "stop"  # by the end token: there is no stop string
        read = self._codec.read(
            ask.question,
            ask.settings,
            ids[:-1] if ended else ids,
            truncated=completion.finish_reason == "length",
        )
        return replace(read, completion_tokens=len(ids), **counts)
