"""Every kernel of the operations compiles for each GPU that it serves, without a GPU."""

import inspect

import pytest

pytest.importorskip("triton")
from deepinfer.ops import aot, aot_launches


@pytest.fixture(scope="module")
def listed() -> list[aot.Variant]:
    return aot.variants(aot_launches.launches([1, 64, 4096]))


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
    for target in aot.TARGETS:
        for variant in first.values():
            if target == 90 or not variant.only_hopper:
                done = aot.compile_for(variant, target)
                assert not done.error, f"{variant.name} sm{target}: {done.error}"
                assert done.stack <= 512, f"{variant.name} sm{target} spills {done.stack} bytes"


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
