"""The command line: one function a command that declares it, one that runs it.

Knows nothing of how a command does its work; heavy rooms are imported by the command that needs
them, so that `--help` and `inspect` start without torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from deepinfer import __version__
from deepinfer.config import cache_dir, check_environment
from deepinfer.errors import ConfigError, DeepinferError

if TYPE_CHECKING:
    from deepinfer.engine.jobs import Job, Offline
    from deepinfer.request import RequestOutput, ScoreOutput

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
    Answer = Callable[[Job, Offline], tuple[str, dict[str, object], str | None]]

EXIT_SOME_FAILED = 1  # the job ran to its end, but some lines hold an error
EXIT_ERROR = 2  # what argparse itself uses for wrong arguments
EXIT_PIPE = 141  # 128 + SIGPIPE: what a shell shows for a writer whose reader has gone


def add_inspect(subparsers: Subparsers) -> None:
    """Declare `deepinfer inspect`."""
    parser = subparsers.add_parser(
        "inspect",
        help="sizes of a model, from its config.json alone",
        description="Print parameters, bytes and cache sizes of a model from its config.json.",
    )
    parser.add_argument("model", help="a checkpoint directory, a config.json file, or 'nano'")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_inspect)


def run_inspect(args: argparse.Namespace) -> int:
    """Print the report of `arch.report`; returns the exit code."""
    from deepinfer.arch import load_arch
    from deepinfer.arch.report import format_report, report, report_json

    path = Path(args.model)
    facts = report(load_arch(path if path.exists() else _model_directory(args.model)))
    print(report_json(facts) if args.json else format_report(facts))
    return 0


def add_generate(subparsers: Subparsers) -> None:
    """Declare `deepinfer generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="continue prompts, greedily",
        description="Continue prompts: one JSON line out for every line in, errors in their line. "
        "Exit code 1 if any line failed.",
    )
    _add_job(parser)
    parser.add_argument(
        "--max-tokens", type=int, default=16, help="tokens to generate a prompt (default 16)"
    )
    parser.add_argument(
        "--decoder-keep",
        type=int,
        help="run only the last N prompt tokens through the decoder layers (bounded replay); "
        "default: all tokens, which is exact",
    )
    parser.set_defaults(run=run_generate)


def run_generate(args: argparse.Namespace) -> int:
    """Run the offline job; returns the exit code."""

    def answer(job: Job, offline: Offline) -> tuple[str, dict[str, object], str | None]:
        result = offline.generate(job, args.max_tokens)
        return _shown(result), _generated(result), result.error

    return _run_job(args, answer, scoring=False)


def _shown(result: RequestOutput) -> str:
    text = result.outputs[0].text if result.outputs else ""
    prompt = result.prompt if result.prompt is not None else list(result.prompt_token_ids)
    return f"{prompt!r} -> {text!r}"


def _generated(result: RequestOutput) -> dict[str, object]:
    record: dict[str, object] = {"id": result.request_id}
    if result.prompt is not None:
        record["prompt"] = result.prompt
    record["prompt_token_ids"] = result.prompt_token_ids
    if result.error is not None:
        return record | {"error": result.error}
    output = result.outputs[0]
    return record | {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
    }


def add_score(subparsers: Subparsers) -> None:
    """Declare `deepinfer score`."""
    parser = subparsers.add_parser(
        "score",
        help="log-probabilities and perplexity of prompts",
        description="Natural log-probability of every prompt token after the first, and the "
        "perplexity of each prompt. Exit code 1 if any line failed.",
    )
    _add_job(parser)
    parser.set_defaults(run=run_score)


def run_score(args: argparse.Namespace) -> int:
    """Score prompts; returns the exit code."""

    def answer(job: Job, offline: Offline) -> tuple[str, dict[str, object], str | None]:
        result = offline.score(job)
        record = _scored(result)
        return f"{result.request_id}: perplexity {record.get('perplexity')}", record, result.error

    return _run_job(args, answer, scoring=True)


def _scored(result: ScoreOutput) -> dict[str, object]:
    record: dict[str, object] = {
        "id": result.request_id,
        "prompt_token_ids": result.prompt_token_ids,
    }
    if result.error is not None:
        return record | {"error": result.error}
    return record | {
        "logprobs": result.logprobs,
        "logprob_sum": result.logprob_sum,
        "perplexity": result.perplexity,
    }


def _add_job(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that reads prompts."""
    parser.add_argument("--model", required=True, help="a checkpoint directory, or 'nano'")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        help='JSON lines: {"prompt": text} or {"prompt_token_ids": [ids]}, with an optional '
        '"id" (and "max_tokens" for generate); "-" reads standard input',
    )
    source.add_argument(
        "--prompt", action="append", help="a prompt; repeat it for several", metavar="TEXT"
    )
    parser.add_argument("--output", help="file for the JSON lines; default: standard output")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--max-model-len", type=int, help="most tokens of prompt and output")
    parser.add_argument(
        "--chunk", type=int, default=2048, help="prompt tokens computed at once (default 2048)"
    )
    parser.add_argument(
        "--numerics",
        choices=("checkpoint", "noquant"),
        default="checkpoint",
        help="noquant: debug mode without quantisers, weights widened to fp32",
    )
    parser.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        help="dummy: random weights from --seed instead of the checkpoint's",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of dummy weights")
    parser.add_argument(
        "--engram",
        choices=("device", "host", "disk"),
        default="device",
        help="where the n-gram tables live (default device)",
    )


def _run_job(args: argparse.Namespace, answer: Answer, *, scoring: bool) -> int:
    """Read and write line by line; files are opened first, before a model is loaded in vain."""
    from tqdm import tqdm

    from deepinfer.engine.jobs import parse_lines
    from deepinfer.engine.open import open_offline
    from deepinfer.model.load import LoadOptions

    failed = 0
    with contextlib.ExitStack() as stack:
        if args.input is not None:
            lines = stack.enter_context(_reader(args.input)).read().splitlines()
        else:
            lines = [json.dumps(prompt) for prompt in args.prompt]
        writer = stack.enter_context(_writer(args.output))
        directory = _model_directory(args.model)
        if args.model == "nano":
            print("note: nano has random weights; its answers mean nothing", file=sys.stderr)
        with tqdm(unit="B", unit_scale=True, desc="weights", disable=None) as bar:
            options = LoadOptions(
                numerics=args.numerics,
                load_format=args.load_format,
                seed=args.seed,
                engram=args.engram,
                progress=bar.update,
            )
            offline = open_offline(
                directory,
                options,
                device=args.device,
                max_model_len=args.max_model_len,
                chunk=args.chunk,
                decoder_keep=None if scoring else args.decoder_keep,
            )
        jobs = list(parse_lines(lines, scoring=scoring))
        for job in tqdm(jobs, unit="prompt", disable=None):
            shown, record, error = answer(job, offline)
            failed += error is not None
            writer.write(json.dumps(record, ensure_ascii=False) + "\n")
            writer.flush()
            if args.output is not None:
                tqdm.write(f"{job.request_id}: error: {error}" if error else shown)
    print(f"{len(jobs) - failed} done, {failed} failed", file=sys.stderr)
    return EXIT_SOME_FAILED if failed else 0


@contextlib.contextmanager
def _reader(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdin
        return
    try:
        with open(name, encoding="utf-8") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --input {name}: {error}") from error


@contextlib.contextmanager
def _writer(name: str | None) -> Iterator[TextIO]:
    if name is None:
        yield sys.stdout
        return
    try:
        file = open(name, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"cannot write --output {name}: {error}") from error
    with file:
        yield file


def _model_directory(name: str) -> Path:
    """The checkpoint directory that a model name means; builds `nano` at its first use."""
    from deepinfer.engine.resolve import resolve_model
    from deepinfer.nano.build import nano_directory

    return resolve_model(name, {"nano": lambda: nano_directory(cache_dir())})


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run`, a function from its arguments to exit code."""
    parser = argparse.ArgumentParser(
        prog="deepinfer", description="An inference engine for DeepSeek-V4.1-Flash."
    )
    parser.add_argument("--version", action="version", version=f"deepinfer {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (add_generate, add_score, add_inspect):
        add(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the entry point of `deepinfer` and `python -m deepinfer`.

    Args:
        argv: arguments without the program name; None takes those of the process.

    Returns:
        The exit code: 0, 2 after `error: ...` on stderr for an error that deepinfer raised, or 141
        if the reader of stdout has gone. Any other exception is a bug and keeps its traceback.
    """
    args = build_parser().parse_args(argv)
    try:
        for warning in check_environment():
            print(f"warning: {warning}", file=sys.stderr)
        code = args.run(args)
        sys.stdout.flush()  # here, so that a closed pipe is met below and not at exit
        return code
    except DeepinferError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
