"""Calls every Triton implementation at the sizes of the release with few tokens, once each.

A program for tools that watch a process: `python -m tests.gpu.every_kernel [SHARE/SHARES]`. It
knows no expected values; it says what it ran. Operations without cases are not among them: those
which change tables of rows.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.bench.slices import slice_arch
from deepinfer.device import find_device
from deepinfer.errors import NoImplementation
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import OPS, Operations
from deepinfer.ops.cases import Maker
from deepinfer.ops.registry import Bound, Op
from deepinfer.ops.sample import sample

ALL: Mapping[str, Op] = {
    name: op
    for name, op in {**OPS, "sample": sample}.items()
    if importlib.util.find_spec(f"deepinfer.ops.{name}.cases")
}
PACKED = ("weights", "weight", "gate")  # parameters with weights that an implementation packs
# Requests at positions on both sides of window and page borders; then slices of prompts.
STEPS = {
    "decode 1": [(300, 1)],
    "decode 9": [(p, 1) for p in (0, 1, 2, 126, 127, 128, 129, 255, 400)],
    "decode 70": [(5 * i, 1) for i in range(70)],
    "prompts": [(0, 150), (37, 1), (100, 110)],
}
FIRST = {"index_select": "hopper"}  # what the release gets, where that is not named "triton"
# Other cases of an operation than its first one.
WAYS: Mapping[str, list[dict[str, Any]]] = {
    "compress": [{"ratio": 1}, {"ratio": 2}],
    "sparse_attention": [{"ratio": 0}, {"ratio": 1}, {"ratio": 2}],
    "index_select": [{"ratio": 1}, {"ratio": 2}, {"ratio": 1, "publish": True}],
}


class Call(NamedTuple):
    """One call: what for, the implementation, its arguments by name."""

    name: str
    bound: Bound
    given: dict[str, Any]


def release(vocab: int = 4096) -> Arch:
    """The release with six experts and few ids."""
    return slice_arch(
        "ep64",
        draft=True,
        vocab_size=vocab,
        engram_pad_token_id=2,
        engram_compressed_vocab_size=2048,
        dspark_noise_token_id=5,
    )


def bound(arch: Arch, name: str, device_arch: str, wish: str = "") -> Bound | None:
    """An operation's implementation of that name, None if there is none; "" = see `FIRST`."""
    wish = wish or FIRST.get(name, "triton")
    if name == "sample":
        return sample.bind(wish, arch=device_arch)
    try:
        return getattr(
            Operations.bind(arch, CHECKPOINT, device_arch, {"*": "reference", name: wish}), name
        )
    except NoImplementation:
        return None


def packed(run: Bound, case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with weights as the implementation wants them."""
    return {k: run.pack(v) if k in PACKED else v for k, v in case.items()}


def calls(
    arch: Arch, device: torch.device, device_arch: str, names: list[str], step: str
) -> Iterator[Call]:
    """Every call of some operations in one step, made one after another to save memory."""
    for name in names:
        run = bound(arch, name, device_arch)
        if run is None:
            continue
        maker = importlib.import_module(f"deepinfer.ops.{name}.cases").case
        for way in WAYS.get(name, [{}]):
            make = Maker(arch, device=device, seed=1)
            case = packed(run, maker(make, make.batch(STEPS[step]), **way))
            described = f"{name} {step} {way or ''}".strip()
            yield Call(described, run, case)
            if name == "sample":  # as engines ask: no laws, and masks now and then
                yield Call(f"{described} plain", run, {**case, "keep_law": False})
                free = {**case, "keep_law": False, "masks": None}
                yield Call(f"{described} free", run, free)
            if name == "index_select" and way.get("publish"):
                found = run(**case).blocks
                again = {**case, "blocks": found, "publish": False}
                yield Call(f"{described} within blocks", run, again)


def tensors(value: Any) -> list[Tensor]:
    """Tensors of a result, also of nested ones."""
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, tuple) else []


def main(share: int, shares: int) -> None:
    """Run one share of the operations."""
    device = find_device("cuda")
    arch = release()
    names = [name for name in ALL if "triton" in _names(ALL[name])][share::shares]
    for step in STEPS:
        for call in calls(arch, device.torch, device.arch, names, step):
            sys.stdout.write(f"{call.name}\n")
            sys.stdout.flush()
            call.bound(**call.given)
            device.synchronize()
    sys.stdout.write(f"all of {', '.join(names)} ran\n")


def _names(op: Op) -> list[str]:
    return [implementation.name for implementation in op.implementations]


if __name__ == "__main__":
    own, _, every = (sys.argv[1] if len(sys.argv) > 1 else "0/1").partition("/")
    main(int(own), int(every))
