"""`deepinfer check`: promises of the engine, tried out on a model."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Literal

from deepinfer.cli.common import (
    EXIT_SOME_FAILED,
    Subparsers,
    add_engine_options,
    model_directory,
    parse_ops,
)


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "check",
        help="try out what the engine promises",
        description="invariance: results do not depend on batch, chunks, preemption, overlap or "
        "threads. Exit code 1 if they do.",
    )
    parser.add_argument("what", choices=("invariance",))
    parser.add_argument("model", help="a checkpoint directory, or 'nano'")
    parser.add_argument("--batch", default="1,17,64", help="numbers of requests (1,17,64)")
    parser.add_argument("--chunk", default="1,7,64,0", help="tokens a step, 0 = all (1,7,64,0)")
    parser.add_argument("--threads", default="1,2", help="CPU threads (1,2)")
    parser.add_argument(
        "--drafts",
        default="0",
        help="drafts a step and row; adaptive = chosen step by step, up to the largest number "
        "given or 5 (0)",
    )
    parser.add_argument(
        "--repeat", action="store_true", help="serve the probes twice: again from the prefix cache"
    )
    parser.add_argument("--preempt", action="store_true", help="also with too few pages")
    parser.add_argument("--prompt-tokens", type=int, default=150, help="longest prompt (150)")
    parser.add_argument("--max-tokens", type=int, default=12, help="tokens generated (12)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check; returns the exit code."""
    from deepinfer.engine.invariance import Grid, Run, check_invariance
    from deepinfer.engine.options import EngineOptions

    options = EngineOptions(
        device=args.device,
        numerics=args.numerics,
        load_format=args.load_format,
        seed=args.seed,
        engram=args.engram,
        policy=args.policy,
        decoder_replay=args.decoder_replay or "compact",
        decoder_keep=args.decoder_keep,
        enable_prefix_caching=args.enable_prefix_caching,
        deterministic=args.deterministic,
        ops=parse_ops(args.op),
    )
    grid = Grid(
        batches=_integers(args.batch, 1),
        chunks=_integers(args.chunk, 0),
        threads=_integers(args.threads, 1),
        drafts=_drafts(args.drafts),
        preempt=args.preempt,
        repeat=args.repeat,
        prompt_tokens=args.prompt_tokens,
        max_tokens=args.max_tokens,
    )

    def tell(item: Run) -> None:
        if not args.json:
            print(f"{item.digest}  {item.name} ({item.preemptions} preemptions)", flush=True)

    report = check_invariance(model_directory(args.model), options, grid, tell)
    if args.json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        print(f"distinct_digests {report.distinct_digests} over {len(report.runs)} runs")
    return 0 if report.distinct_digests == 1 else EXIT_SOME_FAILED


def _drafts(text: str) -> tuple[int | Literal["adaptive"], ...]:
    return tuple(
        "adaptive" if word == "adaptive" else _integers(word, 0)[0] for word in text.split(",")
    )


def _integers(text: str, least: int) -> tuple[int, ...]:
    from deepinfer.errors import ConfigError

    try:
        values = tuple(int(item) for item in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{text!r}: write numbers with commas between them") from error
    if bad := [value for value in values if value < least]:
        raise ConfigError(f"{text!r}: {bad} are below {least}")
    return values
