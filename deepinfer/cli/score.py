"""`deepinfer score`: log-probabilities and perplexity of prompts."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from deepinfer.cli.common import EXIT_SOME_FAILED, Subparsers, add_engine, add_input, open_llm
from deepinfer.cli.generate import input_lines


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "score",
        help="log-probabilities and perplexity of prompts",
        description="Natural log-probability of every prompt token after the first, and the "
        "perplexity of each prompt. Exit code 1 if any line failed.",
    )
    add_engine(parser)
    add_input(parser, "")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score prompts; returns the exit code."""
    from deepinfer.engine.jobs import AnswerFile, parse_lines, scored
    from deepinfer.request import SamplingParams, ScoreOutput

    jobs = list(parse_lines(input_lines(args), SamplingParams(), scoring=True))
    file = None if args.output is None else AnswerFile(Path(args.output), resume=False)
    outputs = {
        job.index: ScoreOutput(job.name, (), (), job.error) for job in jobs if job.error is not None
    }
    good = [job for job in jobs if job.error is None]
    if good:
        with open_llm(args) as llm:
            prompts = [job.prompt for job in good if job.prompt is not None]
            for job, output in zip(good, llm.score(prompts), strict=True):
                outputs[job.index] = output
    failed = 0
    for job in jobs:
        record = scored(job, outputs[job.index])
        failed += "error" in record
        if file is None:
            print(json.dumps(record, ensure_ascii=False))
        else:
            file.write(record)
            print(f"{job.name}: {record.get('error') or record.get('perplexity')}")
    if file is not None:
        file.close(ordered=True)
    print(f"{len(jobs) - failed} done, {failed} failed", file=sys.stderr)
    return EXIT_SOME_FAILED if failed else 0
