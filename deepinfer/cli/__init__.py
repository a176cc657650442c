"""The command line: one module a command, which declares it and runs it.

Knows nothing of how a command does its work; heavy rooms are imported by the command that needs
them, so that `--help` and `inspect` start without torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from deepinfer import __version__
from deepinfer.cli import (
    bench,
    chat,
    check,
    eval,
    generate,
    inspect,
    ops,
    recipe,
    replay,
    score,
    simulate,
)
from deepinfer.cli.common import EXIT_WRONG, Parser
from deepinfer.config import check_environment
from deepinfer.errors import DeepinferError

EXIT_ERROR = EXIT_WRONG  # whoever finds out that something is wrong
EXIT_INTERRUPT = 130  # 128 + SIGINT
EXIT_PIPE = 141  # 128 + SIGPIPE: what a shell shows for a writer whose reader has gone


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run`, a function from its arguments to exit code."""
    parser = Parser(prog="deepinfer", description="An inference engine for DeepSeek-V4.1-Flash.")
    parser.add_argument("--version", action="version", version=f"deepinfer {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands = (generate, chat, score, eval, inspect, recipe, ops, check, replay, simulate, bench)
    for command in commands:
        command.add(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the entry point of `deepinfer` and `python -m deepinfer`.

    Args:
        argv: arguments without the program name; None takes those of the process.

    Returns:
        The exit code: 0, 2 after `error: ...` on stderr for an error that deepinfer raised, 130
        after Ctrl-C, or 141 if the reader of stdout has gone. Any other exception is a bug and
        keeps its traceback.
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
    except KeyboardInterrupt:
        print("interrupted; finished lines are kept", file=sys.stderr)
        return EXIT_INTERRUPT
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
