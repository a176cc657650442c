"""`deepinfer inspect`: sizes of a model, from its `config.json` alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deepinfer.cli.common import Subparsers, model_directory


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "inspect",
        help="sizes of a model, from its config.json alone",
        description="Print parameters, bytes and cache sizes of a model from its config.json.",
    )
    parser.add_argument("model", help="a checkpoint directory, a config.json file, or 'nano'")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report of `arch.report`; returns the exit code."""
    from deepinfer.arch import load_arch
    from deepinfer.arch.report import format_report, report, report_json

    path = Path(args.model)
    facts = report(load_arch(path if path.exists() else model_directory(args.model)))
    print(report_json(facts) if args.json else format_report(facts))
    if not path.exists():
        from deepinfer.nano.build import RANDOM_NOTE, is_random

        if is_random(args.model):
            print(RANDOM_NOTE, file=sys.stderr)
    return 0
