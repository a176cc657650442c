"""The command line: one function a command that declares it, one that runs it.

Knows nothing of how a command does its work; heavy rooms are imported by the command that needs
them, so that `--help` and `inspect` start without torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer import __version__
from deepinfer.config import check_environment
from deepinfer.errors import DeepinferError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

EXIT_ERROR = 2  # what argparse itself uses for wrong arguments
EXIT_PIPE = 141  # 128 + SIGPIPE: what a shell shows for a writer whose reader has gone


def add_inspect(subparsers: Subparsers) -> None:
    """Declare `deepinfer inspect`."""
    parser = subparsers.add_parser(
        "inspect",
        help="sizes of a model, from its config.json alone",
        description="Print parameters, bytes and cache sizes of a model from its config.json.",
    )
    parser.add_argument("model", help="a checkpoint directory, or a config.json file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_inspect)


def run_inspect(args: argparse.Namespace) -> int:
    """Print the report of `arch.report`; returns the exit code."""
    from deepinfer.arch import load_arch
    from deepinfer.arch.report import format_report, report, report_json

    facts = report(load_arch(args.model))
    print(report_json(facts) if args.json else format_report(facts))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run`, a function from its arguments to exit code."""
    parser = argparse.ArgumentParser(
        prog="deepinfer", description="An inference engine for DeepSeek-V4.1-Flash."
    )
    parser.add_argument("--version", action="version", version=f"deepinfer {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_inspect(subparsers)
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
