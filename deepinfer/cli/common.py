"""Arguments and helpers that several commands share. Knows no command."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeAlias

from deepinfer.config import cache_dir
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.api import LLM
    from deepinfer.engine.core import Recorder

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
EXIT_WRONG = 2  # wrong arguments, as argparse itself has it
EXIT_SOME_FAILED = 1  # the job ran to its end, but something in it failed
_ENGINE = (
    "device",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "seed",
    "load_format",
    "numerics",
    "engram",
    "policy",
    "decoder_replay",
    "decoder_keep",
    "enable_prefix_caching",
    "deterministic",
    "enforce_eager",
    "cudagraph_capture_sizes",
    "step_timeout_s",
)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        """End the process with code 2."""
        self.exit(EXIT_WRONG, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    """The numbers that an option lists with commas between them.

    Raises:
        ConfigError: something is no integer, or below `least`.
    """
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{option} {text}: write integers with commas between them") from error
    for value in values:
        check_least(option, value, least)
    return values


def check_least(option: str, value: int | None, least: int) -> None:
    """Raise ConfigError if an option is given and below `least`."""
    if value is not None and value < least:
        raise ConfigError(f"{option} {value}: use a number >= {least}")


def model_directory(name: str) -> Path:
    """The checkpoint directory that a model name means; builds one at its first use if need be."""
    from deepinfer.engine.resolve import resolve_model
    from deepinfer.nano.build import builtin_models

    return resolve_model(name, builtin_models(cache_dir))


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that runs an engine."""
    parser.add_argument("--model", required=True, help="a checkpoint directory, or 'nano'")
    add_engine_options(parser)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """The same without the model."""
    group = parser.add_argument_group("engine")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.add_argument("--max-model-len", type=int, help="most tokens of prompt and output")
    group.add_argument("--max-num-seqs", type=int, default=256, help="requests at a time (256)")
    group.add_argument(
        "--max-num-batched-tokens", type=int, help="tokens computed in one step (8192)"
    )
    group.add_argument("--kv-cache-memory-bytes", type=int, help="memory of pages and slots")
    group.add_argument(
        "--numerics",
        choices=("checkpoint", "noquant"),
        default="checkpoint",
        help="noquant: debug mode without quantisers, weights widened to fp32",
    )
    group.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        help="dummy: random weights from --seed instead of the checkpoint's",
    )
    group.add_argument("--seed", type=int, default=0, help="of requests without one (0)")
    group.add_argument(
        "--engram",
        choices=("device", "host", "disk"),
        default="device",
        help="where the n-gram tables live (device)",
    )
    group.add_argument(
        "--policy", choices=("throughput", "latency"), default="throughput", help="of scheduling"
    )
    group.add_argument(
        "--decoder-replay",
        choices=("off", "mask", "compact", "exact"),
        help="prompt tokens that run the decoder layers: off = all; compact = the last "
        "--decoder-keep, as the model was trained (default); mask = the same numbers, computed for "
        "all; exact = as many as give the numbers of off",
    )
    group.add_argument("--decoder-keep", type=int, help="see above; default: the model's (140)")
    group.add_argument(
        "--num-speculative-tokens",
        type=int,
        metavar="N",
        help="verify N drafts of the checkpoint's draft stages a step and row (0)",
    )
    group.add_argument(
        "--speculative-policy",
        choices=("fixed", "adaptive", "off"),
        help="who chooses how many of N drafts (3) are verified: fixed = always all; adaptive = as "
        "many as pay, by measured time and the drafter's confidence; off = none",
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="prompts share what is computed already",
    )
    group.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a cached prefix gives the same numbers as none; without, windows after a hit are "
        "replayed only as far as the model was trained for",
    )
    group.add_argument(
        "--op",
        action="append",
        default=[],
        metavar="OP=IMPLEMENTATION",
        help="use a named implementation ('*=reference' for all)",
    )
    group.add_argument(
        "--enforce-eager", action="store_true", default=None, help="capture no graphs on a GPU"
    )
    group.add_argument(
        "--cudagraph-capture-sizes",
        type=int,
        nargs="+",
        metavar="ROWS",
        help="capture decoding steps of these numbers of rows at the start; default: sizes for "
        "--max-num-seqs, when they come twice",
    )
    group.add_argument(
        "--step-timeout-s",
        type=float,
        metavar="SECONDS",
        help="name a step in the log that takes longer; it goes on (default: never)",
    )
    group.add_argument(
        "--no-async-scheduling",
        action="store_true",
        help="read each step's result before the next one is planned",
    )


def open_llm(args: argparse.Namespace, recorder: Recorder | None = None) -> LLM:
    """The engine that `add_engine` describes."""
    from deepinfer.api import LLM
    from deepinfer.nano.build import RANDOM_NOTE, is_random

    options: dict[str, Any] = {name: getattr(args, name) for name in _ENGINE}
    options["speculative_config"] = speculation(args)
    if is_random(args.model) and args.load_format == "auto":
        print(RANDOM_NOTE, file=sys.stderr)
    return LLM(
        args.model,
        verbose=sys.stderr.isatty(),
        recorder=recorder,
        ops=parse_ops(args.op),
        async_scheduling=not args.no_async_scheduling,
        **options,
    )


def speculation(args: argparse.Namespace) -> dict[str, object] | None:
    """`speculative_config` of the arguments; None if they do not say."""
    said = {
        "num_speculative_tokens": args.num_speculative_tokens,
        "policy": args.speculative_policy,
    }
    return {name: value for name, value in said.items() if value is not None} or None


def parse_ops(wishes: list[str]) -> dict[str, str]:
    """`OP=IMPLEMENTATION` arguments as a mapping."""
    found: dict[str, str] = {}
    for wish in wishes:
        name, equals, implementation = wish.partition("=")
        if not (name and equals and implementation):
            raise ConfigError(f"--op {wish}: write OPERATION=IMPLEMENTATION")
        found[name] = implementation
    return found


def add_input(parser: argparse.ArgumentParser, fields: str) -> None:
    """Where prompts come from and answers go."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        help='JSON lines: {"prompt": text} or {"prompt_token_ids": [ids]}, with an optional "id"'
        f'{fields}; "-" reads standard input',
    )
    source.add_argument(
        "--prompt", action="append", help="a prompt; repeat it for several", metavar="TEXT"
    )
    parser.add_argument("--output", help="file for the JSON lines; default: standard output")


@contextlib.contextmanager
def reader(name: str) -> Iterator[TextIO]:
    """The input file, or standard input for "-".

    Raises:
        ConfigError: it cannot be read.
    """
    if name == "-":
        yield sys.stdin
        return
    try:
        with open(name, encoding="utf-8") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {name}: {error}") from error
