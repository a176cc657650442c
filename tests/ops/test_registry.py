"""Choosing implementations: what is refused, what falls back, and that it says why."""

import sys
import types

import pytest

from deepinfer.errors import NoImplementation
from deepinfer.ops.registry import Implementation, Op, lazy


def double(x, *, times=2):
    return x * times


def only_on(arch):
    return lambda **facts: None if facts.get("arch") == arch else f"needs {arch}"


@pytest.fixture
def op():
    return Op(double)


def test_auto_without_others_is_the_reference(op):
    bound = op.bind(arch="cpu")
    assert bound(3) == 6
    assert bound.implementation.name == "reference"
    assert bound.reason == "no other implementation"
    assert (op.name, bound.op) == ("double", "double")


def test_auto_takes_the_first_that_serves(op):
    op.add(Implementation("fast", lambda x, *, times=2: 1000, only_on("sm90")))
    op.add(Implementation("other", lambda x, *, times=2: 2000))
    assert op.bind(arch="sm90")(3) == 1000
    assert op.bind(arch="cpu")(3) == 2000
    assert op.bind("reference", arch="sm90")(3) == 6


def test_auto_falls_back_to_the_reference_and_says_why(op):
    op.add(Implementation("fast", lambda x, *, times=2: 1000, only_on("sm90")))
    bound = op.bind(arch="cpu")
    assert bound(3) == 6
    assert bound.reason == "fast: needs sm90"


def test_a_named_wish_is_met_or_refused(op):
    op.add(Implementation("fast", lambda x, *, times=2: 1000, only_on("sm90")))
    op.add(Implementation("other", lambda x, *, times=2: 2000))
    assert op.bind("other", arch="sm90")(3) == 2000
    with pytest.raises(NoImplementation, match="cannot use 'fast'.*needs sm90"):
        op.bind("fast", arch="cpu")
    with pytest.raises(NoImplementation, match="'faster'.*reference, fast, other"):
        op.bind("faster", arch="sm90")


def test_other_parameters_than_the_reference_are_refused(op):
    with pytest.raises(ValueError, match=r"takes \['x', 'factor'\]"):
        op.add(Implementation("fast", lambda x, *, factor: x))
    assert op.implementations == []


@pytest.mark.parametrize("name", ["reference", "fast"])
def test_names_are_unique(op, name):
    op.add(Implementation("fast", double))
    with pytest.raises(ValueError, match="exists already"):
        op.add(Implementation(name, double))


def test_weights_are_packed_by_the_chosen_implementation(op):
    op.add(Implementation("fast", double, pack=lambda weights: [*weights, "packed"]))
    assert op.bind().pack(["w"]) == ["w", "packed"]
    assert op.bind("reference").pack(["w"]) == ["w"]


def later(op, needs):
    """Doubling by the functions of this module, found when they are first called."""
    return lazy(
        op,
        "later",
        needs=needs,
        run=f"{__name__}:tenfold",
        refuses=f"{__name__}:refuses_cpu",
        pack=f"{__name__}:listed",
        order_class="later",
    )


def tenfold(x, *, times=2):
    return 10 * x * times


def refuses_cpu(*, arch, **_facts):
    return "not for cpu" if arch == "cpu" else None


def listed(weights):
    return [weights]


def test_an_optional_implementation_is_loaded_when_it_is_used(op, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or this_module())
    op.add(later(op, "json"))
    bound = op.bind(arch="sm90")
    assert (bound(3), bound.pack("w"), bound.implementation.name) == (60, ["w"], "later")
    assert op.bind(arch="cpu").reason == "later: not for cpu"


def test_an_optional_implementation_without_its_library_says_so(op):
    op.add(later(op, "no_such_library"))
    assert op.bind(arch="sm90").reason == "later: no_such_library is not installed"
    with pytest.raises(NoImplementation, match="no_such_library is not installed"):
        op.bind("later", arch="sm90")


def this_module():
    """This file as a module that `import_module` finds."""
    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


def test_weights_that_an_implementation_cannot_hold_are_an_error_with_a_remedy():
    def pack(weights):
        raise ValueError(f"scale byte {weights} is above 249")

    op = Op(lambda x: x, name="double")
    op.add(Implementation("quick", lambda x: x, pack=pack))
    with pytest.raises(
        NoImplementation,
        match=r"double: quick cannot hold these weights \(scale byte 250 is above 249\); name "
        r"another implementation, such as --op double=reference",
    ):
        op.bind().pack(250)
    assert op.bind("reference").pack(250) == 250
