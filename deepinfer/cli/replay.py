"""`deepinfer replay`: runs a recorded trace, or one request of it, again and compares."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepinfer.cli.common import EXIT_SOME_FAILED, Subparsers, add_engine, open_llm
from deepinfer.errors import ConfigError


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "replay",
        help="run a recorded trace, or one request of it, again and compare",
        description="Run the plans of a trace (generate --trace) on the same model again and "
        "compare what each step generates; or, with --request, run one request alone and say "
        "whether a difference is numerics or corruption. Use the engine options of the recording. "
        "Exit code 1 if anything differs.",
    )
    parser.add_argument("trace", help="file written by generate --trace")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--request", metavar="NAME", help="only this request, alone")
    what.add_argument("--list", action="store_true", help="names of the requests, and do nothing")
    parser.add_argument(
        "--bound",
        type=float,
        metavar="NATS",
        help="with --request: differences of log-probabilities that numerics may make (2)",
    )
    parser.add_argument("--json", action="store_true", help="with --request: print a JSON object")
    add_engine(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay; returns the exit code."""
    if args.list:
        return _list(Path(args.trace))
    return _steps(args) if args.request is None else _request(args)


def _list(path: Path) -> int:
    from deepinfer.engine.record import read_requests

    for name, item in read_requests(path).items():
        prompt, answer = len(item.request.prompt_token_ids), item.answer
        reason = answer.finish_reason or "no end"
        print(f"{name}: {prompt} prompt tokens, {len(answer.token_ids)} generated, {reason}")
    return 0


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """Numbers that JSON has; what no change explains becomes null."""
    return {
        name: _finite(value)
        if isinstance(value, dict)
        else None
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for name, value in record.items()
    }


def _steps(args: argparse.Namespace) -> int:
    from deepinfer.engine.record import read_trace, replay

    trace = read_trace(Path(args.trace))
    with open_llm(args) as llm:
        found = list(replay(trace, llm.runner))
    different = [item for item in found if item is not None]
    for item in different:
        print(f"step {item.number}: recorded {item.recorded}, found {item.found}")
    print(f"{len(found)} steps, {len(different)} differ", file=sys.stderr)
    return EXIT_SOME_FAILED if different else 0


def _request(args: argparse.Namespace) -> int:
    from deepinfer.engine.record import read_requests
    from deepinfer.engine.rerun import BOUND, rerun

    requests = read_requests(Path(args.trace))
    recorded = requests.get(args.request)
    if recorded is None:
        some = ", ".join(list(requests)[:8])
        raise ConfigError(f"{args.trace} has no request {args.request!r}; it has {some}")
    with open_llm(args) as llm:
        verdict = rerun(llm.core, recorded, bound=BOUND if args.bound is None else args.bound)
    if args.json:
        print(json.dumps({"request": args.request, **_finite(asdict(verdict))}))
    else:
        place = verdict.place
        print(f"{verdict.kind}: {verdict.reason}")
        if place is not None:
            here = "" if place.here is None else f", here {place.here}"
            print(f"at generated token {place.position}: recorded {place.token}{here}")
    return 0 if verdict.kind == "equal" else EXIT_SOME_FAILED
