"""Every kernel of the operations compiles for each GPU that it serves, without a GPU."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

import inspect

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from deepinfer.ops import aot, aot_launches, aot_portable


@pytest.fixture(scope="module")
def listed() -> list[aot.Variant]:
    tokens = [1, 64, 4096]
    return aot.variants({**aot_launches.launches(tokens), **aot_portable.portable_launches(tokens)})


def test_operations_on_meta_tensors_launch_nothing_and_are_listed_once(listed):
    assert len(listed) == len(set(listed)) > 30
    names = {variant.name for variant in listed}
    assert {
        "experts.triton._multiply",
        "mhc_boundary.triton_streams.advance_and_project",
        "route.triton._choose",
    } <= names
    # The jitted functions of the modules are either launched or called by launched ones.
    modules = {inspect.getmodule(variant.kernel.fn) for variant in listed}
    jitted = {
        (module, name)
        for module in modules
        if module is not None
        for name, value in vars(module).items()
        if hasattr(value, "params") and value.fn.__module__ == module.__name__
    }
    launched = {(inspect.getmodule(v.kernel.fn), v.kernel.__name__) for v in listed}
    sources = [inspect.getsource(module) for module in modules if module is not None]
    for module, name in jitted - launched:
        # Called, launched, given to a reduction, or named as what some warps of a program do.
        forms = (f"{name}(", f"{name}[", f", {name})", f"({name}, (")
        used = sum(source.count(form) for source in sources for form in forms)
        assert used >= 2, f"{module.__name__}.{name} is defined and never used"


def test_one_variant_of_each_kernel_compiles_with_few_spills(listed):
    first = {variant.name: variant for variant in reversed(listed)}
    for target in (90, 100):
        for variant in first.values():
            if target == 90 or not variant.only_hopper:
                done = aot.compile_for(variant, target)
                assert not done.error, f"{variant.name} sm{target}: {done.error}"
                assert not done.unawaited, f"{variant.name}: products in flight after a step"
                assert done.stack <= 512, f"{variant.name} sm{target} spills {done.stack} bytes"


@triton.jit
def _carried(w_ptr, x_ptr, out_ptr, ADDED: tl.constexpr):
    """A product of decoded codes, summed by the unit itself or beside it."""
    row, k, n = tl.arange(0, 64), tl.arange(0, 64), tl.arange(0, 16)
    total = tl.zeros([64, 16], tl.float32)
    for step in tl.range(0, 8, num_stages=3):
        w = tl.load(w_ptr + row[:, None] * 512 + k[None, :] + step * 64).to(tl.bfloat16)
        x = tl.load(x_ptr + n[None, :] * 512 + k[:, None] + step * 64)
        x2 = tl.load(x_ptr + n[None, :] * 512 + k[:, None] + step * 64 + 8192)
        if ADDED:
            total += tl.dot(w * 2, x2, tl.dot(w, x))
        else:
            total = tl.dot(w * 2, x2, tl.dot(w, x, total))
    tl.store(out_ptr + row[:, None] * 16 + n[None, :], total)


@triton.jit
def _asking(out_ptr):
    """Too many rows for a GPU older than SM100."""
    rows: tl.constexpr = 16 if cuda_capability_geq(10) else 1000
    tl.store(out_ptr + tl.arange(0, rows), 1.0)


def test_kernels_are_told_the_gpu_that_they_are_compiled_for():
    out = torch.empty(1000, device="meta")
    (variant,) = aot.variants({"": lambda: _asking[(1,)](out, num_warps=4)})
    assert "power of 2" in aot.compile_for(variant, 90).error
    assert not aot.compile_for(variant, 100).error


@pytest.mark.parametrize("added", [True, False])
def test_products_that_a_step_does_not_wait_for_are_counted(added):
    types = [torch.uint8, torch.bfloat16, torch.float32]
    given = [torch.empty(2**15, dtype=kind, device="meta") for kind in types]
    (variant,) = aot.variants({"": lambda: _carried[(1,)](*given, added, num_warps=4)})
    done = aot.compile_for(variant, 90)
    assert not done.error
    assert (done.unawaited == 0) == added


def test_a_kernel_that_cannot_be_compiled_is_reported_and_does_not_raise(listed):
    variant = next(v for v in listed if v.name == "triton_rows._sum_quantise")
    broken = aot.Variant(
        variant.kernel,
        variant.signature,
        tuple((name, 1000 if name == "BLOCK" else value) for name, value in variant.constants),
        variant.aligned,
        variant.options,
    )
    assert "power of 2" in aot.compile_for(broken, 90).error
