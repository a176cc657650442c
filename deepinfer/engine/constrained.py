"""Structured output at the border: what a request demands, compiled beside the engine.

Knows nothing of steps and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from deepinfer.arch import Arch
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import RequestError
from deepinfer.grammar import (
    AT_ONCE,
    After,
    Compiler,
    Constraint,
    Grammar,
    Start,
    Vocabulary,
    constraint_of,
    parse_so_args,
)
from deepinfer.request import SamplingParams

THINK, THINK_END = "<think>", "</think>"
_WORKERS = 2

T = TypeVar("T")


class Demand(NamedTuple):
    """What an output must satisfy, and from where on; None = behind open reasoning, if any."""

    constraint: Constraint
    start: Start | None = None


class Bound(NamedTuple):
    """The demand of one request, beginning included."""

    constraint: Constraint
    start: Start


def bind(
    demand: Demand | None,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    tokenizer: TextTokenizer | None,
) -> Bound | None:
    """What the output of a request must satisfy; None if nothing.

    Args:
        demand: from elsewhere than the sampling values.
        params: `structured_outputs` or `so_args` are a demand.
        prompt_ids: of the prompt.
        tokenizer: names the marks of reasoning.

    Raises:
        RequestError: there are two demands, one cannot be read, does not go with other values, or
            there is no tokenizer.
    """
    own = _demand_of(params)
    if demand is not None and own is not None:
        raise RequestError("structured output beside another form of the answer: drop one")
    wanted = own if demand is None else demand
    if wanted is None:
        return None
    if tokenizer is None:
        raise RequestError("structured output needs a model with tokenizer.json")
    if params.ignore_eos or params.forced_token_ids is not None:
        raise RequestError("ignore_eos and forced_token_ids exclude structured output")
    constraint, start = wanted
    return Bound(constraint, _after_reasoning(prompt_ids, tokenizer) if start is None else start)


def _demand_of(params: SamplingParams) -> Demand | None:
    if params.so_args is not None:
        read = parse_so_args(params.so_args)
        return Demand(read.constraint, After(read.trigger_token_ids, read.bound_token_id))
    given = params.structured_outputs
    return None if given is None else Demand(constraint_of(given))


def _after_reasoning(prompt_ids: Sequence[int], tokenizer: TextTokenizer) -> Start:
    """After `</think>` if the last mark of reasoning in the prompt opens it, else at once."""
    opens, closes = (tokenizer.library.token_to_id(mark) for mark in (THINK, THINK_END))
    if closes is None:
        return AT_ONCE
    last = next((id for id in reversed(prompt_ids) if id in (opens, closes)), closes)
    return AT_ONCE if last == closes else After((closes,))


def governed(ids: Sequence[int], start: Start, vocabulary: Vocabulary) -> Sequence[int] | None:
    """The generated ids from the beginning of the grammar on, end tokens left out.

    None if it never began, or can begin several times.
    """
    if not isinstance(start, After):
        return None
    state, first = start.first_state, 0
    while state >= 0:
        if first == len(ids):
            return None
        state = start.advance(state, ids[first], vocabulary)
        first += 1
    return [id for id in ids[first:] if id not in vocabulary.end_ids]


class Grammars:
    """Compiles demands in worker processes; nothing is started before the first one.

    Args:
        arch: names the end token and the size of the vocabulary.
        tokenizer: of the model.
    """

    def __init__(self, arch: Arch, tokenizer: TextTokenizer):
        self._arch = arch
        self._tokenizer = tokenizer
        self._opener = ThreadPoolExecutor(1, "grammars")
        self._compiler: Future[Compiler] | None = None

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        """A grammar later, or the RequestError that says why there is none."""
        return self._with(lambda compiler: compiler.submit(constraint))

    def check(self, constraint: Constraint, text: str) -> Future[str]:
        """What another reader says against a finished text later; empty if nothing."""
        return self._with(lambda compiler: compiler.check(constraint, text))

    def _with(self, ask: Callable[[Compiler], Future[T]]) -> Future[T]:
        """Ask the compiler as soon as it is there: reading a vocabulary takes a second."""
        if self._compiler is None:
            self._compiler = self._opener.submit(self._open)
        if self._compiler.done():
            return ask(self._compiler.result())
        answer: Future[T] = Future()

        def opened(compiler: Future[Compiler]) -> None:
            try:
                ask(compiler.result()).add_done_callback(lambda found: _copy(found, answer))
            except BaseException as error:  # noqa: BLE001 - it belongs to who waits for the answer
                answer.set_exception(error)

        self._compiler.add_done_callback(opened)
        return answer

    def _open(self) -> Compiler:
        text = self._tokenizer.library.to_str()
        try:
            vocabulary = Vocabulary(text, self._arch.vocab_size, [self._arch.eos_token_id])
        except ValueError as error:
            raise RequestError(f"structured output does not work here: {error}") from error
        return Compiler(vocabulary, workers=_WORKERS)

    def close(self) -> None:
        """End the processes; what is being compiled comes to nothing."""
        if self._compiler is not None and not self._compiler.cancel():
            self._compiler.add_done_callback(_close)
        self._opener.shutdown(wait=False)


def _close(opened: Future[Compiler]) -> None:
    if opened.exception() is None:
        opened.result().close()


def _copy(source: Future[T], target: Future[T]) -> None:
    if source.cancelled():
        target.set_exception(RequestError("the engine closes; the constraint was not compiled"))
    elif (error := source.exception()) is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())
