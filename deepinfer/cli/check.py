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
    numbers,
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
        batches=numbers("--batch", args.batch, 1),
        chunks=numbers("--chunk", args.chunk, 0),
        threads=numbers("--threads", args.threads, 1),
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
    def one(word: str) -> int | Literal["adaptive"]:
        return "adaptive" if word == "adaptive" else numbers("--drafts", word, 0)[0]

    return tuple(one(word) for word in text.split(","))
