"""Calls every Triton implementation at the sizes of the release with few tokens, once each.

A program for tools that watch a process. `python -m tests.gpu.every_kernel SHARE/SHARES [STEP...]`
calls operations, or some of them: NAME,NAME:IMPLEMENTATION instead of a share. `... engine` and
`... graphs` serve two requests with drafts by a small engine, directly and in captured steps. It
knows no expected values; it says what it ran.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.bench.slices import slice_arch
from deepinfer.device import find_device
from deepinfer.engine.border import Border
from deepinfer.engine.build import build_core, with_sharing
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.errors import NoImplementation
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import OPS, Operations
from deepinfer.ops.cases import Maker
from deepinfer.ops.conclude import conclude
from deepinfer.ops.decoding import decoding
from deepinfer.ops.draft_start import draft_start
from deepinfer.ops.draft_store import draft_store
from deepinfer.ops.registry import Bound, Op
from deepinfer.ops.sample import sample
from deepinfer.request import SamplingParams
from deepinfer.runner.runner import TorchRunner
from deepinfer.scheduler import Limits
from tests.gpu.networks import build, small

# Operations beside those of the network; of these, the last ones change tables of rows.
OTHERS: Mapping[str, Op] = {
    op.name: op for op in (sample, decoding, draft_start, conclude, draft_store)
}
ALL: Mapping[str, Op] = {**OPS, **OTHERS}
PACKED = ("weights", "weight", "gate")  # parameters with weights that an implementation packs
# Requests at positions on both sides of window and page borders; then slices of prompts.
STEPS = {
    "decode 1": [(300, 1)],
    "decode 9": [(p, 1) for p in (0, 1, 2, 126, 127, 128, 129, 255, 400)],
    "decode 70": [(5 * i, 1) for i in range(70)],
    "prompts": [(0, 150), (37, 1), (100, 110)],
}
# What the release gets, where that is not named "triton".
FIRST: Mapping[str, str] = dict.fromkeys(
    ("draft_attention", "head", "index_select", "markov_draft"), "hopper"
)
# Other cases of an operation than its first one.
WAYS: Mapping[str, list[dict[str, Any]]] = {
    "compress": [{"ratio": 1}, {"ratio": 2}],
    "sparse_attention": [{"ratio": 0}, {"ratio": 1}, {"ratio": 2}],
    "index_select": [{"ratio": 1}, {"ratio": 2}, {"ratio": 1, "publish": True}],
    "conclude": [{}, {"masked": True}],
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
    if name in OTHERS:
        return OTHERS[name].bind(wish, arch=device_arch)
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
    for asked in names:
        name, _, wish = asked.partition(":")
        run = bound(arch, name, device_arch, wish)
        if run is None:
            continue
        maker = importlib.import_module(f"deepinfer.ops.{name}.cases").case
        for way in WAYS.get(name, [{}]):
            make = Maker(arch, device=device, seed=1)
            case = packed(run, maker(make, make.batch(STEPS[step]), **way))
            described = f"{asked} {step} {way or ''}".strip()
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


def chosen(asked: str) -> list[str]:
    """Operations by names, or a share of all Triton implementations for this and other devices."""
    share, slash, shares = asked.partition("/")
    having = {n: {i.name for i in op.implementations} for n, op in ALL.items()}
    names = [n for n, found in having.items() if "triton" in found]
    names += [f"{n}:portable" for n, found in having.items() if "portable" in found]
    return names[int(share) :: int(shares)] if slash else asked.split(",")


def run_operations(names: list[str], steps: Sequence[str]) -> None:
    """Call each operation once a way and step."""
    device = find_device("cuda")
    arch = release()
    for step in steps:
        for call in calls(arch, device.torch, device.arch, names, step):
            say(call.name)
            call.bound(**call.given)
            device.synchronize()
    say(f"all of {', '.join(names)} ran")


def run_engine(*, captured: bool) -> None:
    """A few requests with drafts through a whole engine at small sizes."""
    device = find_device("cuda")
    net = build(small(), device.torch, device.arch, {"*": "auto"})
    options = EngineOptions(
        device="cuda",
        enforce_eager=not captured,
        cudagraph_capture_sizes=(2,) if captured else None,
        speculative_config={"num_speculative_tokens": 3},
    )
    limits = Limits(
        num_pages=6, num_slots=4, max_model_len=200, max_num_batched_tokens=150, max_num_seqs=2
    )
    core = build_core(net, with_sharing(limits, net, options, b"small"), options)
    service = Service(Border(net.arch, None, limits.max_model_len), core, lambda: 0)
    kinds = (
        SamplingParams(temperature=0, max_tokens=9, logprobs=1),
        SamplingParams(seed=3, top_p=0.9, repetition_penalty=1.2, max_tokens=9),
    )
    for i, (count, params) in enumerate(zip((140, 5), kinds, strict=True)):
        service.add(str(i), [(7 * i + 11 * k) % 900 + 10 for k in range(count)], params)
    steps = 0
    while not service.idle:
        for output in service.step():
            assert output.error is None
        steps += 1
        say(f"step {steps}")
    assert isinstance(core.runner, TorchRunner)
    assert (core.runner.captures.replays > 0) == captured
    say("all of the engine ran")


def say(line: str) -> None:
    """A line at once: it tells where a process was when it died."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asked, *some = sys.argv[1:] or ["0/1"]
    if asked in ("engine", "graphs"):
        run_engine(captured=asked == "graphs")
    else:
        run_operations(chosen(asked), some or list(STEPS))
