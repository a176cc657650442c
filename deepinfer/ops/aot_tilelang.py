"""Lowers every TileLang kernel for NVIDIA GPUs and Ascend 950, without a device of either.

Lowering needs no toolkit: for Ascend it gives the source of a device kernel and no more. Where nvcc
is installed the CUDA source is compiled, too. Knows nothing of what the kernels compute.
"""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tilelang
import torch

from deepinfer.ops.add_outputs import tilelang as add_outputs
from deepinfer.ops.linear_fp8 import tilelang as linear_fp8
from deepinfer.ops.mhc_collapse import tilelang as mhc_collapse
from deepinfer.ops.mhc_update import tilelang as mhc_update
from deepinfer.ops.norm_quantise import tilelang as norm_quantise
from deepinfer.ops.stream_mean import tilelang as stream_mean
from deepinfer.ops.tilelang_dialects import dialect
from deepinfer.ops.tilelang_refusals import SERVED

HIDDEN, RANK, STREAMS, EPS = 5120, 1280, 4, 1e-6  # of the release


@dataclass(frozen=True)
class Description:
    """A kernel's description with the sizes of the release."""

    describe: Callable[..., Any]
    sizes: Mapping[str, Any]


@dataclass(frozen=True)
class Lowered:
    """What the compiler made.

    Attributes:
        operation: its name.
        machine: "sm90", "sm100", "sm103", "ascend" or "c".
        source: of the device kernel; empty after an error.
        compiled: whether a toolkit compiled it, too.
        error: last line of the compiler's complaint, empty if all went well.
    """

    operation: str
    machine: str
    source: str = ""
    compiled: bool = False
    error: str = ""

    @property
    def has_kernel(self) -> bool:
        """Whether the source defines the operation's kernel."""
        named = rf"__global__ [^;{{]*\b{self.operation}_kernel\([^;{{]*\{{"
        return bool(re.search(named, self.source))

    def copies(self, form: str) -> int:
        """How often a copy of Ascend stands in the source, as "gm2ub"."""
        return len(re.findall(rf"\basc_copy_{form}\w*\(", self.source))


def descriptions() -> dict[str, Description]:
    """Every operation with a TileLang kernel."""
    bf16 = torch.bfloat16
    rows = {"width": HIDDEN, "dtype": bf16}
    streams = rows | {"count": STREAMS}
    norm = {"norm": bf16, "eps": EPS}
    groups = {"groups": RANK // 32, "dtype": bf16}
    return {
        "add_outputs": Description(add_outputs.describe, rows),
        "linear_fp8": Description(linear_fp8.describe, {"rows": RANK, "columns": HIDDEN}),
        "mhc_collapse": Description(mhc_collapse.describe, streams | norm),
        "mhc_update": Description(mhc_update.describe, streams | {"output": bf16}),
        "norm_quantise": Description(norm_quantise.describe, groups | norm),
        "stream_mean": Description(stream_mean.describe, streams),
    }


def lower(operation: str, machine: str, *, compiles: bool = False) -> Lowered:
    """Lower one kernel for one machine.

    Args:
        operation: key of `descriptions()`.
        machine: "sm90", "sm100" or "ascend".
        compiles: let nvcc compile the source of an NVIDIA GPU.
    """
    assert machine in SERVED
    spoken, wanted = dialect(machine), descriptions()[operation]
    compiles = compiles and machine != "ascend"
    try:
        with spoken.target, tilelang.tvm.transform.PassContext(config=spoken.options):
            made = wanted.describe(spoken, **wanted.sizes)
            done = tilelang.lower(made, target=spoken.target, enable_device_compile=compiles)
    except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        lines = str(error).strip().splitlines() or [""]
        return Lowered(operation, machine, error=f"{type(error).__name__}: {lines[-1]}"[:200])
    return Lowered(operation, machine, done.kernel_source, compiles)


def can_compile() -> bool:
    """Whether nvcc is there."""
    return shutil.which("nvcc") is not None
