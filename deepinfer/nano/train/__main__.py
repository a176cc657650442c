"""`python -m deepinfer.nano.train --seed S --minutes M --out DIR [--until U] [--pause P]`.

Knows the data, the network and the files, and nothing of how each works.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from deepinfer.arch import parse_arch
from deepinfer.device import Device, find_device
from deepinfer.model.engram_map import EngramMap
from deepinfer.nano.data import KINDS, batches, tokenizer
from deepinfer.nano.train.export import config_for, export, write_calibration
from deepinfer.nano.train.loop import Loop, Plan
from deepinfer.nano.train.network import plain
from deepinfer.nano.train.optimise import Rates
from deepinfer.nano.train.schedule import LENGTHS
from deepinfer.nano.train.step import Trainer

_STRIDE = 16  # of draft anchors
_TOKENS = 48 * 1024


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def make_trainer(
    seed: int, device: Device, *, compiled: bool, rates: Rates | None = None, stride: int = _STRIDE
) -> tuple[Trainer, Tokenizer, dict[str, object]]:
    """The trainer of the embedded model, its tokenizer and its `config.json`.

    Args:
        seed: of the first masters.
        device: where to train.
        compiled: compile the parts, which takes minutes, or run them as they are.
        rates: sizes of steps.
        stride: distance of draft anchors, see `Drafter`.
    """
    # One function is compiled for every shape it meets: several layers, lengths and the drafter.
    torch._dynamo.config.recompile_limit = 64
    words = tokenizer()
    config = config_for(words)
    arch = parse_arch(config)
    assert arch.engram is not None
    trainer = Trainer(
        arch,
        EngramMap.build(arch.engram, words, arch.vocab_size),
        device.torch,
        seed=seed,
        fuse=_compiled if compiled else plain,
        stride=stride,
        kinds=len(KINDS),
        rates=rates or Rates(),
    )
    return trainer, words, config


def main(arguments: list[str] | None = None) -> int:
    """Train, and export when the run is over."""
    begun = time.perf_counter()
    options = _options().parse_args(arguments)
    torch.set_float32_matmul_precision("high")  # operands of bf16 are exact in it
    device = find_device(options.device)
    rates = Rates(matrix=options.matrix_rate, other=options.other_rate)
    trainer, words, config = make_trainer(
        options.seed, device, compiled=options.compile, rates=rates
    )
    options.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        seed=options.seed,
        seconds=60 * options.minutes,
        tokens=options.tokens,
        source=batches,
        workers=options.workers,
        kinds=KINDS,
        out=options.out,
    )
    loop = Loop(plan, trainer, device)
    if options.resume is not None:
        loop.load(options.resume)
    loop.rehearse()
    if options.until is not None:
        left = 60 * options.until - (time.perf_counter() - begun)
        loop.plan = replace(plan, seconds=min(plan.seconds, loop.elapsed + max(left, 1.0)))

    def save(directory: Path) -> None:
        export(directory, trainer.bank.masters(), config, words)
        write_calibration(directory, [1.0])

    over = loop.run(
        None if options.pause is None else 60 * options.pause,
        lambda: save(options.out / "half"),
    )
    loop.close()
    model = options.out / "model"
    if over:
        save(model)
    loop.save()
    for length in LENGTHS:
        loop.measure(length)
    if not over:
        print(f"paused after step {loop.step}; go on with --resume {options.out}")
        return 0
    heat = loop.calibrate(LENGTHS[0])
    write_calibration(model, heat)
    print(f"{model}: {loop.step} steps, confidence temperatures {heat}")
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deepinfer.nano.train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, required=True, help="training time of the run")
    parser.add_argument("--pause", type=float, help="minutes after which this command stops")
    parser.add_argument(
        "--until", type=float, help="minutes after the start at which training ends in any case"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="directory of the command before")
    parser.add_argument("--tokens", type=int, default=_TOKENS, help="of a step")
    parser.add_argument(
        "--workers", type=int, default=7, help="processes that make batches of a length"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--other-rate", type=float, default=2e-3)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return parser


if __name__ == "__main__":
    sys.exit(main())
