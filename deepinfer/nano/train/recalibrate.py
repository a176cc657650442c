"""Fits the temperatures of a finished model: `python -m deepinfer.nano.train.recalibrate`.

Reads the checkpoint, drafts over held-out text on any device, writes `calibration.json` anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from deepinfer.arch import load_arch
from deepinfer.device import find_device
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.nano.data import batches
from deepinfer.nano.train.__main__ import make_trainer
from deepinfer.nano.train.calibrate import temperatures
from deepinfer.nano.train.export import write_calibration
from deepinfer.nano.train.loop import HELD_OUT
from deepinfer.nano.train.masters import restored

_LENGTH = 1024


def main(arguments: list[str] | None = None) -> int:
    """Print the temperatures and write them into the model's directory."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer.nano.train.recalibrate")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=16, help="of 1,024 tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    trainer, _, _ = make_trainer(options.seed, device, compiled=False, stride=4)
    arch = load_arch(options.model)
    trainer.bank.take(restored(Checkpoint(options.model, arch), arch))
    parts: list[list[np.ndarray]] = []
    stream = batches(options.seed + HELD_OUT, 1, _LENGTH)
    with torch.no_grad():
        for _ in range(options.rows):
            rows = trainer.rows(next(stream), np.random.default_rng(0))
            parts.append([t.float().cpu().numpy() for t in trainer.confidences(rows)])
    says, right, counted = (np.concatenate(kind) for kind in zip(*parts, strict=True))
    heat = temperatures(says, right > 0, counted > 0)
    trials = counted.sum(0).astype(int).tolist()
    print(f"temperatures {[round(t, 3) for t in heat]} from {trials} drafts")
    write_calibration(options.model, heat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
