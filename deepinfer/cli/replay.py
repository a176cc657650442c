"""`deepinfer replay`: runs a recorded trace again and compares every step."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deepinfer.cli.common import EXIT_SOME_FAILED, Subparsers, add_engine, open_llm


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "replay",
        help="run a recorded trace again and compare",
        description="Run the plans of a trace (generate --trace) on the same model again and "
        "compare what each step generates. Use the engine options of the recording. Exit code 1 "
        "if a step differs.",
    )
    parser.add_argument("trace", help="file written by generate --trace")
    add_engine(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay; returns the exit code."""
    from deepinfer.engine.record import read_trace, replay

    plans, digests = read_trace(Path(args.trace))
    with open_llm(args) as llm:
        found = list(replay(plans, digests, llm.runner))
    different = [item for item in found if item is not None]
    for item in different:
        print(f"step {item.number}: recorded {item.recorded}, found {item.found}")
    print(f"{len(found)} steps, {len(different)} differ", file=sys.stderr)
    return EXIT_SOME_FAILED if different else 0
