"""`deepinfer generate`: the offline job."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.cli.common import (
    EXIT_SOME_FAILED,
    Subparsers,
    add_engine,
    add_input,
    open_llm,
    reader,
)
from deepinfer.cli.structure import add_structure, response_format, structure
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.engine.border import Prompt
    from deepinfer.engine.jobs import AnswerFile, Job, Record
    from deepinfer.engine.record import FileRecorder
    from deepinfer.request import RequestOutput, SamplingParams

_NUMBERS = {
    "n": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "max_tokens": int,
    "min_tokens": int,
    "logprobs": int,
    "prompt_logprobs": int,
}


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "generate",
        help="continue prompts",
        description="Continue prompts: one JSON line out for every line in, errors in their line. "
        "Greedy unless a temperature is given. Exit code 1 if any line failed.",
    )
    add_engine(parser)
    add_input(parser, ', "priority" and any sampling value of its own')
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the answers that --output already holds and compute the others",
    )
    parser.add_argument(
        "--chat", action="store_true", help="a prompt is a user's message; answers have a message"
    )
    parser.add_argument(
        "--no-thinking", action="store_true", help="with --chat: answer without reasoning"
    )
    parser.add_argument("--trace", help="write plans and digests of results (see replay)")
    parser.add_argument("--statistics", help="write one JSON line a step")
    group = parser.add_argument_group("sampling", "values for lines that have none of their own")
    for name, kind in _NUMBERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind)
    group.add_argument("--stop", action="append", metavar="TEXT", help="ends an answer; repeatable")
    group.add_argument("--stop-token-ids", type=int, nargs="+", metavar="ID")
    group.add_argument("--ignore-eos", action="store_true", help="go on after the end token")
    group.add_argument("--sampling-seed", type=int, help="seed of every line without its own")
    add_structure(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the job; returns the exit code."""
    from deepinfer.engine.jobs import AnswerFile, parse_lines

    if args.no_thinking and not args.chat:
        raise ConfigError("--no-thinking needs --chat: a plain prompt is continued as it stands")
    if args.resume and args.output is None:
        raise ConfigError("--resume needs --output, the file to go on with")
    jobs = list(parse_lines(input_lines(args), _defaults(args)))
    # The file is opened before the model: a wish that cannot be met must not cost a load.
    file = None if args.output is None else AnswerFile(Path(args.output), resume=args.resume)
    ordered = False
    try:
        left = jobs if file is None else [job for job in jobs if not file.done(job)]
        failed = _answer(args, left, file) if left else 0
        ordered = True
    finally:
        if file is not None:
            file.close(ordered=ordered)
    kept = len(jobs) - len(left)
    note = f", {kept} kept from before" if kept else ""
    print(f"{len(left) - failed} done, {failed} failed{note}", file=sys.stderr)
    return EXIT_SOME_FAILED if failed else 0


def input_lines(args: argparse.Namespace) -> list[str]:
    """JSON lines of `--input`, or made of `--prompt`."""
    if args.input is None:
        return [json.dumps(prompt) for prompt in args.prompt]
    with reader(args.input) as file:
        return file.read().splitlines()


def _defaults(args: argparse.Namespace) -> SamplingParams:
    from deepinfer.request import SamplingParams

    given: dict[str, Any] = {"temperature": 0.0}
    given |= {name: getattr(args, name) for name in _NUMBERS if getattr(args, name) is not None}
    return SamplingParams(
        **given,
        stop=args.stop,
        stop_token_ids=args.stop_token_ids,
        ignore_eos=args.ignore_eos,
        seed=args.sampling_seed,
        # A conversation says it itself where it can, so that the model reads it.
        structured_outputs=None if args.chat and response_format(args) else structure(args),
    )


class _Printer:
    """Prints records in the order of the input, each as early as that allows."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, Record] = {}

    def write(self, place: int, record: Record) -> None:
        self._waiting[place] = record
        while self._next in self._waiting:
            print(json.dumps(self._waiting.pop(self._next), ensure_ascii=False), flush=True)
            self._next += 1


def _answer(args: argparse.Namespace, jobs: Sequence[Job], file: AnswerFile | None) -> int:
    """Compute answers and write each as soon as it is there; returns how many failed."""
    from tqdm import tqdm

    from deepinfer.engine.jobs import generated
    from deepinfer.request import RequestOutput

    failed = 0
    printer = _Printer()

    def give(place: int, output: RequestOutput) -> None:
        nonlocal failed
        job = jobs[place]
        failed += output.error is not None
        record = generated(job, output)
        if file is None:
            printer.write(place, record)
        else:
            file.write(record)
            tqdm.write(_shown(job, output), file=sys.stdout)

    runnable: list[tuple[int, Job, Prompt]] = []
    for place, job in enumerate(jobs):
        error = job.error
        if error is None and args.chat and not isinstance(job.prompt, str):
            error = "--chat reads messages as text, not as ids"
        if error is not None:
            give(place, RequestOutput(job.name, None, (), (), error=error))
        elif job.prompt is not None:
            runnable.append((place, job, job.prompt))
    if runnable:
        with _recorder(args) as recorder, open_llm(args, recorder=recorder) as llm:
            params = [job.params for _, job, _ in runnable]
            prompts = [prompt for _, _, prompt in runnable]

            def done(i: int, output: RequestOutput) -> None:
                give(runnable[i][0], output)

            if args.chat:
                talks = [[{"role": "user", "content": prompt}] for prompt in prompts]
                llm.chat(talks, params, on_output=done, **_request(args))
            else:
                ranks = [job.priority for _, job, _ in runnable]
                llm.generate(prompts, params, priority=ranks, on_output=done)
    return failed


def _request(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of every chat request."""
    request: dict[str, Any] = {}
    if args.no_thinking:
        request["thinking"] = {"type": "disabled"}
    wanted = response_format(args)
    return request if wanted is None else {**request, "response_format": wanted}


@contextlib.contextmanager
def _recorder(args: argparse.Namespace) -> Iterator[FileRecorder | None]:
    """The recorder that `--trace` and `--statistics` ask for."""
    from deepinfer.engine.record import FileRecorder

    files = [None if name is None else Path(name) for name in (args.trace, args.statistics)]
    if files == [None, None]:
        yield None
        return
    recorder = FileRecorder(*files)
    try:
        yield recorder
    finally:
        recorder.close()


def _shown(job: Job, output: RequestOutput) -> str:
    if output.error is not None:
        return f"{job.name}: error: {output.error}"
    prompt = job.prompt if isinstance(job.prompt, str) else list(output.prompt_token_ids)
    return "\n".join(f"{prompt!r} -> {completion.text!r}" for completion in output.outputs)
