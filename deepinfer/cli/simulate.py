"""`deepinfer simulate`: a trace of requests through the planner, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.cli.common import Subparsers
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.bench.simulate.run import Setup

_SHAPE = (
    "pages",
    "pool_bytes",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "drafts",
    "adaptive",
    "caching",
    "snapshots",
    "ttl",
)


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "simulate",
        help="serve a trace of requests without a model",
        description="Run a trace through the real planner on a simulated clock: hit rates beside "
        "an infinite cache, latencies, throughput, preemptions, use of pages. Durations come from "
        "a linear cost of a step; see docs/simulate.md.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace",
        metavar="FILE",
        help='JSON lines: {"arrival": seconds, "prefix": name, "prefix_tokens": n, '
        '"prompt_tokens": n, "output_tokens": n}, with an optional "session"',
    )
    source.add_argument("--make", metavar="NAME", help="write a trace instead: shared_prefix")
    parser.add_argument("--seed", type=int, default=0, help="of --make (0)")
    parser.add_argument("--out", metavar="DIR", help="write report, curves as CSV and as SVG")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _add_engine(parser)
    parser.set_defaults(run=run)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("simulated engine")
    group.add_argument("--config", metavar="FILE", help="a config.json; default: the release's")
    group.add_argument(
        "--cost",
        metavar="FILE",
        help="coefficients, or tables of bench predict, as JSON (from rooflines)",
    )
    group.add_argument("--pages", type=int, help="of the pool; default: what --pool-bytes hold")
    group.add_argument("--pool-bytes", type=int, default=1 << 30, help="memory of pages (1 GiB)")
    group.add_argument("--max-model-len", type=int, help="most tokens of prompt and output")
    group.add_argument("--max-num-seqs", type=int, default=256, help="requests at a time (256)")
    group.add_argument(
        "--max-num-batched-tokens", type=int, default=8192, help="tokens of a step (8192)"
    )
    group.add_argument("--drafts", type=int, default=0, help="verified a step and row (0)")
    group.add_argument(
        "--adaptive", action="store_true", help="verify as many of the drafts as pay, not all"
    )
    group.add_argument(
        "--acceptance", type=float, default=0.75, help="assumed chance of a draft (0.75)"
    )
    group.add_argument("--policy", choices=("throughput", "latency"), default="throughput")
    group.add_argument(
        "--caching",
        choices=("off", "exact", "bounded"),
        default="bounded",
        help="how windows come back after a hit without a snapshot (bounded)",
    )
    group.add_argument("--snapshots", type=int, default=198, help="kept, 0 = none (198: 256 MiB)")
    group.add_argument("--ttl", type=float, default=300.0, help="seconds a snapshot is kept (300)")
    group.add_argument(
        "--no-async-scheduling", action="store_true", help="wait for each step before the next"
    )
    group.add_argument(
        "--check", action="store_true", help="compute on a device that checks every plan; slow"
    )


def run(args: argparse.Namespace) -> int:
    """Simulate or make a trace; returns the exit code."""
    if args.make is not None:
        from deepinfer.bench.simulate.traces import make_trace

        for line in make_trace(args.make, args.seed):
            print(line.to_json())
        return 0
    from deepinfer.bench.simulate.report import markdown, summary, write_files
    from deepinfer.bench.simulate.run import simulate
    from deepinfer.bench.simulate.trace import read_trace

    lines, setup = read_trace(Path(args.trace)), _setup(args)
    outcome = simulate(lines, setup)
    record = summary(outcome, setup, Path(args.trace).stem)
    print(json.dumps(record) if args.json else markdown(record), end="\n" if args.json else "")
    if args.out is not None:
        for path in write_files(Path(args.out), record, outcome):
            print(f"wrote {path}", file=sys.stderr)
    return 0


def _setup(args: argparse.Namespace) -> Setup:
    from deepinfer.arch import load_arch
    from deepinfer.bench.simulate.cost import StepCost
    from deepinfer.bench.simulate.run import Setup
    from deepinfer.bench.simulate.setup import Wishes, release_arch, simulated_limits
    from deepinfer.bench.simulate.table_cost import read_step_cost
    from deepinfer.scheduler import POLICIES

    if not 0 <= args.acceptance <= 1:
        raise ConfigError(f"--acceptance {args.acceptance}: use 0 to 1")
    arch = release_arch() if args.config is None else load_arch(args.config)
    wishes = Wishes(**{name: getattr(args, name) for name in _SHAPE})
    return Setup(
        limits=simulated_limits(arch, wishes),
        policy=POLICIES[args.policy],
        cost=StepCost() if args.cost is None else read_step_cost(Path(args.cost)),
        overlap=not args.no_async_scheduling,
        acceptance=args.acceptance,
        check=args.check,
    )
