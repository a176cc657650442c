"""`deepinfer eval`: scores of question sets on the offline engine or an endpoint."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.cli.common import EXIT_SOME_FAILED, Subparsers, add_engine_options, open_llm
from deepinfer.errors import ConfigError
from deepinfer.eval.tasks import TASKS, Task, Wish

if TYPE_CHECKING:
    from deepinfer.eval.backend import Backend
    from deepinfer.eval.endpoint import Endpoint
    from deepinfer.eval.question import Settings
    from deepinfer.eval.run import Verdicts
    from deepinfer.eval.samples import History

# What besides the sampling changes an answer of the offline engine.
_ENGINE = ("numerics", "load_format", "decoder_keep")


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "eval",
        help="score question sets",
        description="Ask the questions of a set, keep every reply in a file, and score them. "
        "Public sets are read from --data; own sets are made from --seed. Exit code 1 if a sample "
        "is missing or ended in an error.",
    )
    sets = "; ".join(f"{task.name}: {task.what}" for task in TASKS.values())
    parser.add_argument("task", choices=list(TASKS), metavar="TASK", help=sets)
    parser.add_argument("--model", help="a checkpoint directory, 'nano', or a name at --url")
    _add_questions(parser)
    _add_samples(parser)
    _add_endpoint(parser)
    _add_judge(parser)
    add_engine_options(parser)
    parser.set_defaults(run=run)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions")
    group.add_argument("--data", help="a .jsonl, .csv or .parquet file, or a directory of them")
    group.add_argument("-n", "--limit", type=int, help="most problems (all; 200 of an own set)")
    group.add_argument(
        "--samples", type=int, help="samples a problem (aime2026 32, gpqa 4, else 1)"
    )
    group.add_argument("--temperature", type=float, help="(1 for public sets, 0 for own ones)")
    group.add_argument("--top-p", type=float)
    group.add_argument("--max-tokens", type=int, help="of an answer, reasoning included")
    group.add_argument(
        "--thinking",
        choices=("on", "off", "auto"),
        help="reason first (on for public sets and arith, else off); auto leaves it to the server",
    )
    group.add_argument("--reasoning-effort", dest="effort", help="such as low, high or max")
    group.add_argument(
        "--context", default="1000,4000", help="needle: estimated tokens (1000,4000)"
    )
    group.add_argument(
        "--bytes-per-token", type=float, default=4.0, help="needle: of that estimate (4)"
    )


def _add_samples(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("samples and figures")
    group.add_argument("--output", help="sample file (TASK.samples.jsonl)")
    group.add_argument("--resume", action="store_true", help="ask what the file lacks")
    group.add_argument("--score-only", action="store_true", help="ask nothing, score the file")
    group.add_argument("--verdicts", help="write the verdict on every sample to this file")
    group.add_argument("--prices", help="price sheet (TOML); see docs/eval.md")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def _add_endpoint(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("endpoint", "ask a server instead of the offline engine")
    group.add_argument("--url", help="base address, such as http://host:8000/v1")
    group.add_argument("--api-key-file", help="file that holds the key")
    group.add_argument("--concurrency", type=int, default=16, help="requests at a time (16)")
    group.add_argument("--timeout", type=float, default=3600, help="seconds of an attempt (3600)")
    group.add_argument("--retries", type=int, default=4, help="further attempts (4)")
    group.add_argument("--extra-body", default="{}", help="JSON object of further request keys")
    group.add_argument("--devices", type=int, help="devices behind the server, for device-seconds")


def _add_judge(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judge", "hle: a model decides instead of rules")
    group.add_argument("--judge-url", help="base address of its server")
    group.add_argument("--judge-model", help="its name there")
    group.add_argument("--judge-key-file", help="file that holds the key")
    group.add_argument("--judge-prompt", help="file with {question}, {target} and {response}")


def run(args: argparse.Namespace) -> int:
    """Ask and score; returns the exit code."""
    from deepinfer.eval.price import read_price_sheet
    from deepinfer.eval.report import as_json, lines
    from deepinfer.eval.run import judged_by_rules, new_run_path, verdict_records
    from deepinfer.eval.samples import read
    from deepinfer.eval.summary import summarise

    task = TASKS[args.task]
    path = new_run_path(task) if args.output is None else Path(args.output)
    # What can be wrong is looked at before anything is asked.
    sheet = None if args.prices is None else read_price_sheet(Path(args.prices))
    judge = _judge(args)
    if not args.score_only:
        _collect(args, task, path)
    history = read(path)
    verdicts = judged_by_rules(task, history)
    if judge is not None:
        verdicts = _by_judge(args, judge, path, history, verdicts)
    if args.verdicts is not None:
        records = verdict_records(history, verdicts)
        _write(Path(args.verdicts), "".join(_line(record) for record in records))
    summary = summarise(history, verdicts, sheet)
    settings = history.sessions[0].settings
    if args.json:
        print(json.dumps(as_json(settings, summary), ensure_ascii=False))
    else:
        print("\n".join(lines(settings, summary)))
    return EXIT_SOME_FAILED if summary.errors or summary.missing else 0


def _collect(args: argparse.Namespace, task: Task, path: Path) -> None:
    """Ask what the sample file lacks."""
    from deepinfer.eval.run import collect, settings_record
    from deepinfer.eval.samples import SampleFile

    if args.model is None:
        raise ConfigError("give --model, or --score-only to score a sample file")
    if args.devices is not None and args.devices < 1:
        raise ConfigError(f"--devices {args.devices}: use 1 or more")
    wish = Wish(
        data=None if args.data is None else Path(args.data),
        limit=args.limit,
        samples=task.samples if args.samples is None else args.samples,
        seed=args.seed,
        contexts=_lengths(args.context),
        bytes_per_token=args.bytes_per_token,
    )
    questions = task.questions(wish)
    settings = _settings(args, task)
    endpoint = None
    more = {name: getattr(args, name) for name in _ENGINE}
    if args.url is not None:
        endpoint = _endpoint(args, args.url, args.model, args.api_key_file)
        more = {"extra_body": endpoint.extra}
    record = settings_record(task, settings, args.seed, args.model, more)
    file = SampleFile(path, record, resume=args.resume)
    try:
        asked = collect(
            questions, file, settings, args.seed, lambda: _backend(args, endpoint, args.devices)
        )
    finally:
        file.close()
    print(f"{asked} asked, samples in {path}", file=sys.stderr)


@contextlib.contextmanager
def _backend(
    args: argparse.Namespace, endpoint: Endpoint | None, devices: int | None
) -> Iterator[tuple[Backend, int | None]]:
    """The endpoint, or the offline engine for as long as it is needed."""
    if endpoint is not None:
        from deepinfer.eval.endpoint import EndpointBackend

        yield EndpointBackend(endpoint), devices
        return
    from deepinfer.eval.backend import OfflineBackend
    from deepinfer.eval.codec import ChatCodec

    with open_llm(args) as llm:
        codec = ChatCodec(llm.get_tokenizer().library.to_str())
        yield OfflineBackend(llm, codec), devices or 1


def _settings(args: argparse.Namespace, task: Task) -> Settings:
    """The task's way of asking with what the caller changes, checked."""
    from deepinfer.request import SamplingParams

    names = ("temperature", "top_p", "max_tokens")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    SamplingParams(**given)  # the same limits, before a model is loaded
    if args.thinking is not None:
        given["thinking"] = {"on": True, "off": False, "auto": None}[args.thinking]
    if args.effort is not None:
        given["effort"] = args.effort
    return dataclasses.replace(task.settings, **given)


def _endpoint(args: argparse.Namespace, url: str, model: str, key_file: str | None) -> Endpoint:
    from deepinfer.eval.endpoint import Endpoint

    try:
        extra = json.loads(args.extra_body)
    except ValueError as error:
        raise ConfigError(f"--extra-body is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ConfigError("--extra-body is no JSON object")
    return Endpoint(
        url,
        model,
        key=None if key_file is None else _text(Path(key_file)).strip(),
        concurrency=args.concurrency,
        timeout=args.timeout,
        retries=args.retries,
        extra=extra,
    )


def _judge(args: argparse.Namespace) -> Endpoint | None:
    """The judge's endpoint, None if rules decide."""
    if args.judge_url is None:
        if args.judge_model or args.judge_prompt or args.judge_key_file:
            raise ConfigError("a judge needs --judge-url")
        return None
    if args.task != "hle":
        raise ConfigError(f"{args.task} is scored by rules; leave --judge-url out")
    if args.judge_model is None:
        raise ConfigError("--judge-url needs --judge-model")
    return _endpoint(args, args.judge_url, args.judge_model, args.judge_key_file)


def _by_judge(
    args: argparse.Namespace, judge: Endpoint, path: Path, history: History, verdicts: Verdicts
) -> Verdicts:
    """Ask the judge what its file lacks; verdicts with its word."""
    from deepinfer.eval.endpoint import EndpointBackend
    from deepinfer.eval.judge import PROMPT, SETTINGS, check_prompt, judge_questions, judged
    from deepinfer.eval.run import collect
    from deepinfer.eval.samples import SampleFile, read

    prompt = PROMPT if args.judge_prompt is None else check_prompt(_text(Path(args.judge_prompt)))
    questions = judge_questions(history, prompt)
    if not questions:
        return verdicts
    backend = EndpointBackend(judge)
    place = path.with_name(path.name + ".judge")
    file = SampleFile(place, {"task": "judge", "model": judge.model}, resume=True)
    try:
        collect(questions, file, SETTINGS, 0, lambda: contextlib.nullcontext((backend, None)))
    finally:
        file.close()
    return judged(verdicts, list(read(place).latest().values()))


def _lengths(text: str) -> list[int]:
    try:
        return [int(item) for item in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--context {text!r}: write numbers with commas between them") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error


def _line(record: object) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
