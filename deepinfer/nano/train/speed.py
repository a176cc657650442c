"""How long a training step takes, and where: `python -m deepinfer.nano.train.speed`.

Trains for a few steps of each kind and keeps nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from deepinfer.device import find_device
from deepinfer.nano.data import batches
from deepinfer.nano.train.__main__ import make_trainer
from deepinfer.nano.train.sinkhorn import balance

_TOKENS = 1 << 16
_STEPS = 5
_KERNELS = 25


def main(arguments: list[str] | None = None) -> int:
    """Print a line for every kind of step; tables of kernels go to files."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer.nano.train.speed")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args(arguments)
    torch.set_float32_matmul_precision("high")
    device = find_device(options.device)
    print(f"largest difference of balance and its gradient: {_balance_error(device.torch):.2e}")
    trainer, _, _ = make_trainer(1, device, compiled=options.compile)
    random = np.random.default_rng(0)
    for length, sparse in ((1024, False), (1024, True), (4096, False), (4096, True)):
        made = [next(batches(1, _TOKENS // length, length, number)) for number in range(2)]

        def steps(count: int, sparse: bool = sparse, made: list = made) -> tuple[float, float]:  # type: ignore[type-arg]
            begun = time.perf_counter()
            for i in range(count):
                rows = trainer.rows(made[i % 2], random)
                trainer.train(rows, sparse=sparse, offset=i, factor=0.1)
            enqueued = time.perf_counter() - begun
            device.synchronize()
            return enqueued / count, (time.perf_counter() - begun) / count

        first = steps(1)[1]
        steps(1)
        host, each = steps(_STEPS)
        print(
            f"length {length} sparse {sparse}: first {first:.1f} s, host {host:.3f} s, step "
            f"{each:.3f} s, {_TOKENS / each:,.0f} tokens/s, "
            f"{device.memory_held() / 2**30:.1f} GiB held",
            flush=True,
        )
        if sparse == (length == 4096):
            with torch.profiler.profile() as profile:
                steps(1)
            order = f"self_{device.torch.type}_time_total"
            table = profile.key_averages().table(
                sort_by=order, row_limit=_KERNELS, max_name_column_width=70
            )
            (options.out / f"kernels_{length}_{options.compile}.txt").write_text(table)
    return 0


def _balance_error(device: torch.device) -> float:
    """The device's `balance` against the plain one, values and gradients."""
    here = torch.randn(1000, 4, 4, generator=torch.Generator().manual_seed(0)) * 3
    there = here.to(device).requires_grad_()
    here.requires_grad_()
    left, right = balance(here, 20, 1e-6), balance(there, 20, 1e-6)
    left.square().sum().backward()
    right.square().sum().backward()
    assert here.grad is not None
    assert there.grad is not None
    grads = (here.grad - there.grad.cpu()).abs().max()
    return float(torch.maximum((left - right.cpu()).abs().max(), grads))


if __name__ == "__main__":
    sys.exit(main())
