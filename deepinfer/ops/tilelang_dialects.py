"""How one TileLang description becomes a kernel of an NVIDIA GPU, an Ascend 950, or plain C.

A description is a function `describe(dialect, **sizes)` that returns a TileLang program. It says
what is copied and computed; its dialect says where copies land, which threads compute, and how
numbers are spelled. The C target has one thread and neither bf16 nor FP8, but it runs anywhere, so
descriptions can be tested without a device. Knows nothing of any particular operation.

In one parallel loop a description never reads again what it has written there: TileLang 0.1.15 for
CUDA may then use the value that was read before.
"""
# TileLang is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import tilelang
import torch
from tilelang import language as common
from tilelang.ascend import language as ascend
from tilelang.backend.target import determine_target
from tilelang.language.eager.builder import Builder
from torch import Tensor

from deepinfer.device import find_device
from deepinfer.ops.tilelang_refusals import SERVED

_CUDA = {"sm90": "sm_90a", "sm100": "sm_100a", "sm103": "sm_103a"}
_CORES = 64  # programs of a launch on Ascend, whatever the number of tokens
_BLOCK = 1024  # columns of a program that needs no whole row
_TINY = 0x3C800000  # 2^-6, the smallest normal E4M3 number
_ADDEND = 0x46800000  # 2^14: fp32 numbers there are 2^-9 apart, as E4M3's subnormals are


@dataclass(frozen=True)
class Dialect:
    """What a description needs to know of a machine.

    Attributes:
        name: "sm90", "sm100", "sm103", "ascend" or "c".
        language: TileLang's module for it, `T` in descriptions.
        target: what the compiler is told.
    """

    name: str
    language: Any
    target: Any

    @property
    def bf16(self) -> str:
        """The type that holds bf16; C has its bits only."""
        return "uint16" if self.name == "c" else "bfloat16"

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told beside the target.

        Multiply and add are not fused, so that streams keep the reference's bits; the C target's
        vectors know no conversions.
        """
        if self.name in _CUDA:
            return {"tl.device_compile_flags": ["--fmad=false"]}
        return {"tirx.disable_vectorize": True} if self.name == "c" else {}

    def stored(self, dtype: torch.dtype) -> str:
        """The type of a tensor's elements.

        Raises:
            ValueError: neither bf16 nor fp32.
        """
        if dtype not in (torch.bfloat16, torch.float32):
            raise ValueError(f"TileLang kernels take bf16 and fp32, not {dtype}; use reference")
        return self.bf16 if dtype == torch.bfloat16 else "float32"

    def launch(self, programs: Any, threads: int) -> AbstractContextManager[Any]:
        """So many programs; the number of each.

        On Ascend each core takes every 64th one and fetches ahead, and threads are there only
        inside `vector`.
        """
        if self.name == "ascend":
            return self._every_64th(programs)
        return self.language.Kernel(programs, threads=threads)

    @contextmanager
    def _every_64th(self, programs: Any) -> Iterator[Any]:
        T, builder = self.language, Builder.current()
        with builder.with_frame(T.Kernel(_CORES)) as core:
            turns = T.Pipelined(T.ceildiv(programs - core, _CORES), num_stages=2)
            with builder.with_frame(turns) as turn:
                yield turn * _CORES + core

    def vector(self, threads: int) -> AbstractContextManager[Any]:
        """The part of a program that computes; copies of whole tiles stand outside."""
        if self.name == "ascend":
            return self.language.SimtVF(threads=threads)
        return nullcontext()

    def tile(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Memory of a program: on Ascend its unified buffer, else its registers."""
        if self.name == "ascend":
            return self.language.alloc_shared(shape, dtype)
        return self.language.alloc_fragment(shape, dtype)

    def widened(self, value: Any) -> Any:
        """An element as fp32."""
        T = self.language
        if value.dtype == "float32":
            return value
        if self.name == "c":
            return T.reinterpret(T.cast(value, "uint32") << T.uint32(16), "float32")
        return T.cast(value, "float32")

    def rounded(self, value: Any, dtype: str) -> Any:
        """fp32 as an element of `dtype`, bf16 half to even."""
        T = self.language
        if dtype == "float32":
            return value
        if self.name != "c":
            return T.cast(value, dtype)
        bits = T.reinterpret(value, "uint32")
        odd = (bits >> T.uint32(16)) & T.uint32(1)
        return T.cast((bits + T.uint32(0x7FFF) + odd) >> T.uint32(16), "uint16")

    def sum_of(self, values: Any, total: Any) -> None:
        """total [1] = the sum of values [n]; inside `vector`."""
        T = self.language
        if self.name != "c":
            T.reduce_sum(values, total, dim=0)
            return

        @T.macro
        def add_up(values, total, count):
            total[0] = T.float32(0)
            for i in T.serial(count):
                total[0] = total[0] + values[i]

        add_up(values, total, int(values.shape[0]))

    def largest_of(self, groups: Any, largest: Any) -> None:
        """largest [n] = the largest size in each row of groups [n, 32]; inside `vector`."""
        T = self.language
        if self.name != "c":
            T.reduce_absmax(groups, largest, dim=1)
            return

        @T.macro
        def compare(groups, largest, count, width):
            for g in T.serial(count):
                largest[g] = T.float32(0)
                for i in T.serial(width):
                    largest[g] = T.max(largest[g], T.max(groups[g, i], -groups[g, i]))

        compare(groups, largest, *map(int, groups.shape))

    def operand(self, shape: tuple[int, int]) -> Any:
        """A matrix to be multiplied; C multiplies fp32."""
        if self.name == "c":
            return self.language.alloc_fragment(shape, "float32")
        return self.language.alloc_shared(shape, "bfloat16")

    def sums(self, shape: tuple[int, int]) -> Any:
        """fp32 sums of products."""
        if self.name == "ascend":
            return self.language.alloc_l0c(shape, "float32")
        return self.language.alloc_fragment(shape, "float32")

    def multiply(self, left: Any, right: Any, sums: Any, step: Any) -> None:
        """sums [m, n] += left [m, k] right [n, k]^T; step 0 begins them. Outside `vector`."""
        T = self.language
        if self.name == "ascend":  # the cube cores read their own memory
            first, second = (T.alloc_l1(o.shape, o.dtype) for o in (left, right))
            T.evaluate(T.copy(left, first))
            T.evaluate(T.copy(right, second))
            T.evaluate(T.gemm(first, second, sums, transpose_B=True, clear_accum=step == 0))
            return

        @T.macro
        def add_products(left, right, sums, step):
            if step == 0:
                for i, j in T.Parallel(*sums.shape):
                    sums[i, j] = T.float32(0)
            T.gemm(left, right, sums, transpose_B=True)

        add_products(left, right, sums, step)

    def store(self, sums: Any, out: Any, row: Any, column: Any) -> None:
        """Sums, rounded to bf16, to a block of a matrix; rows behind its end are left out."""
        T = self.language
        rows, columns = map(int, sums.shape)
        place = out[row : row + rows, column : column + columns]
        if self.name == "ascend":
            T.evaluate(T.copy(sums, place))
            return

        @T.macro
        def round_and_copy(sums, rounded, place):
            for i, j in T.Parallel(rows, columns):
                rounded[i, j] = self.rounded(sums[i, j], self.bf16)
            T.copy(rounded, place)

        round_and_copy(sums, T.alloc_fragment((rows, columns), self.bf16), place)


def scale_byte(T: Any, largest: Any) -> Any:
    """E8M0 byte (int32) of an FP8 group: the smallest power of two >= largest / 448.

    Without a division: 448 is 1.75 x 2^8, so the exponent goes up by one where the fraction is
    above 0.75. The same integers on every machine.
    """
    return ((T.reinterpret(largest, "int32") + 0x1FFFFF) >> 23) - 8


def power_of_two(T: Any, exponent: Any) -> Any:
    """fp32 2^(exponent - 127) of an int32 from 1 to 254."""
    return T.reinterpret(exponent << 23, "float32")


def e4m3(T: Any, value: Any) -> Any:
    """E4M3 code (uint8) of fp32 up to 448 in size, half to even.

    In integers: the C target has no FP8, and so the code that was tested is the code that runs.
    """
    bits = T.reinterpret(value, "int32")
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    tiny = T.reinterpret(T.reinterpret(size, "float32") + T.float32(2.0**14), "int32") - _ADDEND
    return T.cast(T.Select(size < _TINY, tiny, normal) | ((bits >> 24) & 0x80), "uint8")


def e4m3_value(T: Any, code: Any) -> Any:
    """fp32 of an E4M3 code, exact; no NaN. Nothing is subnormal on the way."""
    bits = T.cast(code, "int32")
    size = T.reinterpret(((bits & 0x7F) << 20) + (120 << 23), "float32")
    # Below the normal numbers this is (8 + m) / 8 x 2^-7, and m / 8 x 2^-6 is meant.
    size = T.Select((bits & 0x7F) < 8, T.float32(2) * size - T.float32(2.0**-6), size)
    return T.reinterpret(T.reinterpret(size, "int32") | ((bits & 0x80) << 24), "float32")


def block_of(width: int) -> int:
    """Columns of a program: the largest part of a row up to 1024 that is a multiple of 32."""
    return max(b for b in range(32, _BLOCK + 1, 32) if width % b == 0)


def threads_of(columns: int) -> int:
    """Threads that share a row, the same part each, and eight numbers or more if there are so many.

    Args:
        columns: a multiple of 32. (TileLang 0.1.15 sums no row that leaves threads idle.)
    """
    return next((t for t in (256, 128, 64) if columns % t == 0 and columns >= 8 * t), 32)


@functools.cache
def dialect(name: str) -> Dialect:
    """The dialect of "sm90", "sm100", "sm103", "ascend" or "c"."""
    if name == "ascend":
        return Dialect(name, ascend, determine_target("ascend", return_object=True))
    wanted: Any = {"kind": "cuda", "arch": _CUDA[name]} if name in _CUDA else "c"
    return Dialect(name, common, determine_target(wanted, return_object=True))


@functools.cache
def _built(describe: Callable[..., Any], name: str, **sizes: Any) -> Callable[..., Any]:
    """Compiled for good."""
    spoken = dialect(name)
    with spoken.target:
        made = describe(spoken, **sizes)
    return tilelang.compile(made, target=spoken.target, pass_configs=spoken.options)


@functools.cache
def _machine(device: torch.device) -> str:
    name = {"cpu": "c", "npu": "ascend"}.get(device.type) or find_device(str(device)).arch
    if name not in (*SERVED, "c"):
        raise ValueError(f"TileLang kernels are lowered for {', '.join(SERVED)}, not {name}")
    return name


def launch(describe: Callable[..., Any], *tensors: Tensor, **sizes: Any) -> None:
    """Compile a description at its first use with these sizes, and run it.

    Args:
        describe: see the head of this file; its module is the operation's.
        tensors: parameters of its program, on one device; outputs are contiguous.
        sizes: keywords of `describe`; numbers and dtypes, never the number of tokens.

    Raises:
        ValueError: a device for which nothing is lowered.
    """
    name = _machine(tensors[0].device)
    given = [t.contiguous() for t in tensors]
    if name == "c":  # bf16 by its bits
        given = [t.view(torch.uint16) if t.dtype == torch.bfloat16 else t for t in given]
    _built(describe, name, **sizes)(*given)
