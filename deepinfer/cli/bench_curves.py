"""Sweeps, the whole engine and predictions of `deepinfer bench`; `bench.py` owns the command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.cli.common import model_directory, numbers, parse_ops
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.bench.decode import Workload
    from deepinfer.bench.prefill import Prompts
    from deepinfer.bench.shared import Load
    from deepinfer.bench.simulate.tables import StepModel
    from deepinfer.bench.subject import Record, Subject

SUITES = ("decode", "prefill", "shared", "end-to-end", "predict")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of these suites alone."""
    group = parser.add_argument_group("decode, prefill: sweeps over the number of requests; shared")
    group.add_argument("--model", help="a checkpoint directory or embedded model; or see --slice")
    group.add_argument(
        "--batch", help="requests (decode 1 to 64; prefill 1,2,4; shared 8,32; --published to 256)"
    )
    group.add_argument(
        "--uncached",
        type=int,
        help="tokens of a prompt that no cache has (4096); the rest is a hit",
    )
    group.add_argument(
        "--budget", help="prefill: tokens of a step, which holds whole prompts or a part"
    )
    group.add_argument(
        "--acceptance",
        help="decode: assumed part of the drafts that is accepted (0.75), or 'real': as measured",
    )
    group.add_argument(
        "--published",
        action="store_true",
        help="the published curves' workload: 131,072 tokens, 3 drafts",
    )
    group.add_argument(
        "--engram",
        choices=("device", "host", "disk"),
        default="device",
        help="where the n-gram tables are (device); a slice has no files on a disk",
    )
    group.add_argument("--steps", type=int, help="timed at each point (decode 60, prefill 7)")
    group.add_argument("--operations", action="store_true", help="also time each operation")
    group.add_argument("--out", type=Path, metavar="DIR", help="write JSON lines, table and plot")
    group = parser.add_argument_group("end-to-end: the engine against eager reference operations")
    group.add_argument("--output-tokens", type=int, help="of each request (256; shared: 64)")
    group.add_argument(
        "--eager-tokens",
        type=int,
        help="that the references generate; the others' time is that of as many of their steps",
    )
    _add_prediction(parser)


def measure(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Run the suite that the arguments name; it prints its records itself."""
    if args.what == "predict":
        return predict(args)
    if args.what == "shared":
        return shared(args)
    return end_to_end(args) if args.what == "end-to-end" else sweep(args)


def shared(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Serve requests behind one text."""
    from deepinfer.bench import shared as behind

    subject = _subject(args)
    rows = _numbers(args.batch) or behind.ROWS
    return behind.run(subject.network, subject.name, rows, together(args), json=args.json)


def end_to_end(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Serve batches on both sides."""
    from deepinfer.bench import end_to_end as whole

    batches = _numbers(args.batch)
    return whole.run(
        args.device or "auto",
        batches or whole.BATCHES,
        output=args.output_tokens or 256,
        eager=args.eager_tokens,
        ops=parse_ops(args.op),
        json=args.json,
    )


def sweep(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Run a sweep, print each record as it comes, write the files."""
    from deepinfer.bench import curve

    subject = _subject(args)
    records: list[Record] = []
    for record in _sweep(args, subject):
        records.append(record | subject.record())
        print(json.dumps(records[-1]) if args.json else _line(record), flush=True)
    if args.out is not None:
        for path in curve.write(args.out, args.what, records):
            print(f"wrote {path}", file=sys.stderr)
    return records


def _subject(args: argparse.Namespace) -> Subject:
    from deepinfer.bench.subject import open_directory, open_slice

    if (args.model is None) == (args.slice is None):
        raise ConfigError("what is to be measured? Use either --model or --slice")
    device, ops = args.device or "auto", parse_ops(args.op)
    if args.slice is not None:
        return open_slice(args.slice, device, ops, draft=_drafts(args) > 0, engram=args.engram)
    return open_directory(args.model, model_directory(args.model), device, ops, args.engram)


def _drafts(args: argparse.Namespace) -> int:
    if args.what == "shared":
        return together(args).drafts
    return workload(args).drafts if args.what == "decode" else 0


def _sweep(args: argparse.Namespace, subject: Subject) -> Iterator[Record]:
    from deepinfer.bench.decode import decode
    from deepinfer.bench.prefill import prefill

    if args.what == "decode":
        return decode(subject, workload(args))
    return prefill(subject, prompts(args))


def workload(args: argparse.Namespace) -> Workload:
    """The decoding sweep that the arguments describe."""
    from deepinfer.bench.decode import DEFAULTS, PUBLISHED

    base = PUBLISHED if args.published else DEFAULTS
    changes: dict[str, object] = {
        "rows": _numbers(args.batch),
        "length": args.length,
        "drafts": args.drafts,
        "uncached": args.uncached,
        "steps": args.steps,
        "operations": args.operations,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if args.acceptance is not None:
        given["acceptance"] = None if args.acceptance == "real" else _part(args.acceptance)
    return replace(base, **given)  # pyright: ignore[reportArgumentType] - checked by the class


def together(args: argparse.Namespace) -> Load:
    """The requests behind one text that the arguments describe."""
    from deepinfer.bench.shared import Load

    changes: dict[str, object] = {
        "length": args.length or (131072 if args.published else None),
        "uncached": args.uncached,
        "output": args.output_tokens,
        "drafts": args.drafts,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return Load(**given)  # pyright: ignore[reportArgumentType] - checked by the class


def prompts(args: argparse.Namespace) -> Prompts:
    """The sweep over prompts that the arguments describe."""
    from deepinfer.bench.prefill import Prompts

    changes: dict[str, object] = {
        "requests": _numbers(args.batch),
        "length": args.length or (131072 if args.published else None),
        "uncached": args.uncached,
        "repeats": args.steps,
        "budgets": _numbers(args.budget, "--budget"),
        "operations": args.operations,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(Prompts(), **given)  # pyright: ignore[reportArgumentType] - checked by the class


def _numbers(text: str | None, option: str = "--batch") -> tuple[int, ...] | None:
    return None if text is None else numbers(option, text, 1)


def _part(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"--acceptance {text}: write a number from 0 to 1, or real") from error


def _line(record: Record) -> str:
    if "operation" in record:
        return f"  {record['name']:44} {record['calls']:4} calls {record['us'] / 1e3:9.3f} ms"
    fields = ("step_ms", "spread", "floor_ms", "of_floor")
    fields += ("gpu_tokens_s", "user_tokens_s", "gpu_new_tokens_s")
    values = (f"{name} {record[name]:.4g}" for name in fields if name in record)
    return f"{record['name']:20} {', '.join(values)}"


def _add_prediction(parser: argparse.ArgumentParser) -> None:
    """Options of the prediction alone."""
    group = parser.add_argument_group("predict: tables of measured steps against other steps")
    group.add_argument(
        "--points",
        type=Path,
        metavar="FILE",
        help="records of decode --json, half of them with --operations; prefill's may be there too",
    )
    group.add_argument(
        "--cost",
        type=Path,
        metavar="FILE",
        help="write tables and constants for deepinfer simulate --cost",
    )
    group.add_argument("--experts", type=int, help="of the rank that --cost describes")


def predict(args: argparse.Namespace) -> Sequence[Mapping[str, object]]:
    """Fit on some points, predict the others, print and write what came of it."""
    from deepinfer.bench.simulate import predict as prediction
    from deepinfer.bench.simulate.setup import release_arch
    from deepinfer.bench.simulate.tables import read_points

    if args.points is None:
        raise ConfigError("bench predict needs --points FILE, records of bench decode --json")
    found, model = prediction.record(read_points(args.points), release_arch())
    print(json.dumps(found) + "\n" if args.json else prediction.markdown(found), end="")
    if args.out is not None:
        for path in prediction.write(args.out, found):
            print(f"wrote {path}", file=sys.stderr)
    if args.cost is not None:
        _write_cost(args, model)
    return [found]


def _write_cost(args: argparse.Namespace, model: StepModel) -> None:
    from deepinfer.bench.simulate.table_cost import TableCost, prompt_cost

    if args.experts is None:
        raise ConfigError("--cost needs --experts, those of the rank it describes")
    lines = args.points.read_text(encoding="utf-8").splitlines()
    prompts = prompt_cost([json.loads(line) for line in lines], args.experts)
    source = f"tables of {args.points.name}, {args.experts} experts"
    cost = TableCost(model, args.experts, prompts, source)
    try:
        args.cost.write_text(cost.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {args.cost}: {error}") from error
