"""Compiles every Triton kernel that a model launches, for given GPUs, without one.

The launches are those of the operations themselves, recorded while they run on meta tensors of the
model's sizes, so that the list cannot go stale. Knows nothing of what the kernels compute.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.language import target_info
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

TARGETS = (90, 100, 103)  # compute capabilities times ten
_LAYOUTS_ONLY = ("mhc_boundary.triton_split.split",)  # Gluon without an instruction of one GPU
_UNITS = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)\b")
_FROM_REGISTERS = re.compile(r"warp_group_dot .*isAsync = true.*: tensor<[^>]*#ttg\.dot_op")
_WAIT = re.compile(r"warp_group_dot_wait .*pendings = (\d+)")
_TYPES = {
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.bool: "*i1",
}


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel: argument types, constants, options."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """Module and function."""
        return f"{self.kernel.fn.__module__.removeprefix('deepinfer.ops.')}.{self.kernel.__name__}"

    @property
    def only_hopper(self) -> bool:
        """Gluon kernels are written with instructions that only SM90 has (wgmma), but for some."""
        return bool(self.kernel.is_gluon()) and self.name not in _LAYOUTS_ONLY

    def describe(self) -> str:
        """Constants and options in words."""
        options = [f"{k}={v}" for k, v in self.options if k in ("num_warps", "num_stages")]
        return " ".join([*(f"{k}={v}" for k, v in self.constants), *options])


@dataclass(frozen=True)
class Compiled:
    """What the compiler said; `error` is empty if all went well.

    `units` are the kinds of instructions of the matrix unit, as the assembler names them.
    `unawaited`: products with an operand in registers that a loop starts and does not wait for
    before its next step, which may change these registers. Triton 3.6 makes such loops.
    """

    variant: Variant
    target: int
    registers: int = 0
    stack: int = 0
    shared: int = 0
    error: str = ""
    units: frozenset[str] = frozenset()
    unawaited: int = 0


def _variant(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Variant:
    names = [p.name for p in kernel.params]
    given = dict(zip(names, args, strict=False))
    given |= {k: v for k, v in kwargs.items() if k in names}
    signature: list[tuple[str, str]] = []
    constants: list[tuple[str, Any]] = []
    aligned: list[int] = []
    for number, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        if parameter.is_constexpr:
            signature.append((parameter.name, "constexpr"))
            constants.append((parameter.name, value))
        elif isinstance(value, Tensor):
            signature.append((parameter.name, _TYPES[value.dtype]))
            aligned.append(number)
        elif isinstance(value, TensorDescriptor | GluonDescriptor):
            element = _TYPES[value.base.dtype].removeprefix("*")
            layout = f",{value.layout!r}" if isinstance(value, GluonDescriptor) else ""
            signature.append((parameter.name, f"tensordesc<{element}{value.block_shape}{layout}>"))
        else:
            signature.append((parameter.name, "fp32" if isinstance(value, float) else "i32"))
            if not parameter.do_not_specialize and not value % 16:
                aligned.append(number)
    unset = ("grid", "warmup")
    options = sorted(
        (k, v) for k, v in kwargs.items() if k not in (*names, *unset) and v is not None
    )
    return Variant(kernel, tuple(signature), tuple(constants), tuple(aligned), tuple(options))


@contextmanager
def recorded() -> Iterator[list[Variant]]:
    """Within it kernels are not launched but listed, each variant once, in order."""
    found: dict[Variant, None] = {}
    launch = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        found[_variant(self, args, kwargs)] = None

    listed: list[Variant] = []
    JITFunction.run = run
    try:
        yield listed
    finally:
        JITFunction.run = launch
        listed.extend(found)


@contextmanager
def _asked_for(target: GPUTarget) -> Iterator[None]:
    """Within it kernels that ask for the device at hand are told this one."""
    real = target_info.driver
    told = SimpleNamespace(get_current_target=lambda: target)
    target_info.driver = SimpleNamespace(active=told)
    try:
        yield
    finally:
        target_info.driver = real


def compile_for(variant: Variant, target: int) -> Compiled:
    """Compile one variant for one compute capability, one of `TARGETS`."""
    source = GluonASTSource if variant.kernel.is_gluon() else ASTSource
    names = [name for name, _ in variant.signature]
    constants = {(names.index(name),): value for name, value in variant.constants}
    attributes = {(number,): [["tt.divisibility", 16]] for number in variant.aligned}
    gpu = GPUTarget("cuda", target, 32)
    try:
        # A failing assembler prints its whole input.
        with redirect_stdout(StringIO()), _asked_for(gpu):
            built = triton.compile(
                source(variant.kernel, dict(variant.signature), constants, attributes),
                target=gpu,
                options=dict(variant.options),
            )
    except (CompilationError, PTXASError, OutOfResources, RuntimeError) as error:
        return Compiled(variant, target, error=_short(error))
    registers, stack = _resources(built.asm["cubin"])
    units = frozenset(_UNITS.findall(built.asm["ptx"]))
    unawaited = 0 if variant.kernel.is_gluon() else _unawaited(built.asm["ttgir"])
    return Compiled(
        variant, target, registers, stack, built.metadata.shared, units=units, unawaited=unawaited
    )


def _unawaited(text: str) -> int:
    """See `Compiled`; of the compiler's text for the GPU."""
    started = found = 0
    for line in text.splitlines():
        if _FROM_REGISTERS.search(line):
            started += 1
        elif wait := _WAIT.search(line):
            started = min(started, int(wait[1]))
        elif "scf.for" in line or "scf.yield" in line:
            found += started if "scf.yield" in line else 0
            started = 0
    return found


def _short(error: Exception) -> str:
    """First and last line of a compiler's complaint."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}"[:200]


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and bytes of local memory (spills), as the compiler's tool reports."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "kernel.cubin"
        file.write_bytes(cubin)
        tool = [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
        text = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def variants(calls: Mapping[str, Callable[[], object]]) -> list[Variant]:
    """The kernel variants that some calls launch; the calls see meta tensors only."""
    with recorded() as listed:
        for call in calls.values():
            call()
    return listed
