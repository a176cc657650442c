"""`deepinfer chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from deepinfer.cli.common import Subparsers, add_engine, open_llm
from deepinfer.cli.structure import add_structure, response_format, structure
from deepinfer.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from deepinfer.api import LLM
    from deepinfer.request import SamplingParams

_HELP = "/reset forgets the conversation, /exit (or end of input) leaves, Ctrl-C ends an answer"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description=f"Answers line by line as it is generated, reasoning dimmed. {_HELP}.",
    )
    add_engine(parser)
    parser.add_argument("--system", help="the system message")
    parser.add_argument(
        "--no-thinking", action="store_true", help="answer at once, without reasoning"
    )
    parser.add_argument("--reasoning-effort", choices=("low", "high", "xhigh", "max"))
    group = parser.add_argument_group("sampling", "default: the model's own values for its mode")
    group.add_argument("--temperature", type=float)
    group.add_argument("--top-p", type=float)
    group.add_argument("--max-tokens", type=int, help="most tokens of an answer")
    group.add_argument("--sampling-seed", type=int)
    add_structure(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends; returns the exit code."""
    params, request = _params(args), _request(args)
    llm = open_llm(args)
    opening = [] if args.system is None else [{"role": "system", "content": args.system}]
    messages: list[dict[str, Any]] = list(opening)
    if sys.stdin.isatty():
        print(_HELP, file=sys.stderr)
    for line in _lines(sys.stdin):
        if line == "/exit":
            break
        if line == "/reset":
            messages = list(opening)
            continue
        asked = [*messages, {"role": "user", "content": line}]
        try:
            content = _answer(llm, asked, params, request)
        except RequestError as error:
            print(f"not answered: {error}", file=sys.stderr)
            continue
        messages = [*asked, {"role": "assistant", "content": content}]
    return 0


def _lines(source: TextIO) -> Iterator[str]:
    """Lines that say something; a prompt is shown to a person."""
    while True:
        if source.isatty():
            print("> ", end="", flush=True, file=sys.stderr)
        line = source.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _answer(
    llm: LLM, messages: list[dict[str, Any]], params: SamplingParams | None, request: dict[str, Any]
) -> str:
    """Print an answer as it comes; returns its content, also if Ctrl-C ends it."""
    dim, thinking = sys.stdout.isatty(), False
    content: list[str] = []
    try:
        with contextlib.closing(llm.stream_chat(messages, params, **request)) as deltas:
            for delta in deltas:
                if thought := delta.get("reasoning_content"):
                    thinking = True
                    print(f"{_DIM}{thought}{_PLAIN}" if dim else thought, end="", flush=True)
                if text := delta.get("content"):
                    print("\n" if thinking else "", text, sep="", end="", flush=True)
                    thinking = False
                    content.append(text)
    except KeyboardInterrupt:
        print(" [ended]", file=sys.stderr)
    print(flush=True)
    return "".join(content)


def _request(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of the chat request."""
    request: dict[str, Any] = {}
    if args.no_thinking:
        if args.reasoning_effort is not None:
            raise ConfigError("--no-thinking and --reasoning-effort exclude each other")
        request["thinking"] = {"type": "disabled"}
    if args.reasoning_effort is not None:
        request["reasoning_effort"] = args.reasoning_effort
    wanted = response_format(args)
    return request if wanted is None else {**request, "response_format": wanted}


def _params(args: argparse.Namespace) -> SamplingParams | None:
    """Sampling values; None if none is given."""
    from deepinfer.request import SamplingParams

    given: dict[str, Any] = {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_tokens": args.max_tokens,
        "seed": args.sampling_seed,
    }
    if response_format(args) is None:  # else the conversation says it, and the model reads it
        given["structured_outputs"] = structure(args)
    values = {name: value for name, value in given.items() if value is not None}
    if not values:
        return None
    return SamplingParams(**{"max_tokens": 1024, **values})
