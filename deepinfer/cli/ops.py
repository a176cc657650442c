"""`deepinfer ops`: which implementation of each operation a model would run, and why."""

from __future__ import annotations

import argparse
import json

from deepinfer.cli.common import Subparsers, model_directory, parse_ops


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "ops",
        help="operations, their implementations, and which one is chosen",
        description="For every operation: its implementations, the one chosen for a model on a "
        "device, and why.",
    )
    parser.add_argument("--model", default="nano", help="a checkpoint directory (default: nano)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--numerics", choices=("checkpoint", "noquant"), default="checkpoint")
    parser.add_argument("--op", action="append", default=[], metavar="OP=IMPLEMENTATION")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; returns the exit code."""
    from deepinfer.arch import load_arch
    from deepinfer.device import find_device
    from deepinfer.model.numerics import numerics
    from deepinfer.model.operations import OPS, Operations

    arch = load_arch(model_directory(args.model))
    device = find_device(args.device)
    bound = Operations.bind(arch, numerics(args.numerics), device.arch, parse_ops(args.op))
    rows: list[dict[str, object]] = []
    for name, op in sorted(OPS.items()):
        chosen = getattr(bound, name)
        rows.append(
            {
                "op": name,
                "implementations": " ".join(["reference", *(i.name for i in op.implementations)]),
                "chosen": chosen.implementation.name,
                "why": chosen.reason,
                "order_class": chosen.implementation.order_class,
                "batch_invariant": chosen.implementation.batch_invariant,
                "graph_safe": chosen.implementation.graph_safe,
            }
        )
    if args.json:
        print(json.dumps({"device": device.arch, "ops": rows}))
        return 0
    for row in rows:
        graphs = "graph-safe" if row["graph_safe"] else "no graphs"
        told = f"{row['chosen']:10} {graphs:10} of {row['implementations']}: {row['why']}"
        print(f"{row['op']:18} {told}")
    return 0
