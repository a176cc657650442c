"""The comparer itself: it accepts what a manifest allows and refuses the smallest step beyond."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.golden.compare import Golden, judge

BF16 = torch.bfloat16


def rule(kind, value, **more):
    return {"kind": kind, "value": value, "applies_when": "unit", **more}


def statistic(metric, value):
    return rule("statistic", value, metric=metric)


def passes(tolerance, value, reference, mask=None):
    return judge("x", tolerance, torch.as_tensor(value), torch.as_tensor(reference), mask).passed


@pytest.fixture
def folder(tmp_path):
    """Writes tensors and their entries as a golden folder of one file."""

    def write(**tensors):
        entries, data = [], {}
        for name, (value, fields) in tensors.items():
            data[name] = value
            entries.append(
                {
                    "file": "f.safetensors",
                    "name": name,
                    "shape": list(value.shape),
                    "dtype": str(value.dtype).removeprefix("torch."),
                    **fields,
                }
            )
        save_file(data, tmp_path / "f.safetensors")
        manifest = {"tolerance_format": 1, "tensors": entries}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        return Golden(tmp_path)

    return write


def test_exact_takes_equal_infinities_and_refuses_one_bit():
    ref = torch.tensor([1.0, -torch.inf, 0.0])
    assert passes(rule("exact", 0), ref.clone(), ref)
    assert passes(rule("exact", 0), torch.tensor([1.0, -torch.inf, -0.0]), ref)
    for place in range(3):
        other = ref.clone()
        other[place] = torch.nextafter(other[place], torch.tensor(2.0))
        assert not passes(rule("exact", 0), other, ref)


def test_exact_refuses_nan():
    assert not passes(rule("exact", 0), [torch.nan], [torch.nan])


@given(st.floats(1e-3, 1e3), st.floats(0.01, 0.99))
def test_abs_stands_at_its_limit(limit, inside):
    tolerance = rule("abs", limit)
    assert passes(tolerance, torch.tensor([limit * inside]).double(), torch.zeros(1).double())
    assert not passes(tolerance, torch.tensor([limit * 1.01]).double(), torch.zeros(1).double())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_abs_refuses_a_finite_value_for_infinity_and_the_reverse(value):
    assert not passes(rule("abs", 1e9), [value], [-torch.inf])
    assert passes(rule("abs", 0), [-torch.inf], [-torch.inf])
    if value != 0.0:
        assert not passes(rule("abs", 1e9), [value], [0.0])


def test_rel_rms_divides_by_the_standard_deviation():
    ref = torch.tensor([0.0, 2.0, 0.0, 2.0])  # standard deviation 1, mean 1
    assert passes(rule("rel_rms", 0.1), ref + 0.0999, ref)
    assert not passes(rule("rel_rms", 0.1), ref + 0.1001, ref)
    assert passes(rule("rel_rms", 0.1), ref + torch.tensor([0.19, 0, 0, 0]), ref)


def test_rel_rms_skips_what_is_infinite_in_the_reference_only():
    ref = torch.tensor([0.0, 2.0, -torch.inf])
    assert passes(rule("rel_rms", 0), torch.tensor([0.0, 2.0, 5.0]), ref)
    assert not passes(rule("rel_rms", 1e6), torch.tensor([-torch.inf, 2.0, 5.0]), ref)


@given(st.integers(-120, 120), st.integers(1, 3))
def test_one_ulp_of_bfloat16_is_one_step_of_its_bits(exponent, steps):
    bits = torch.tensor([(exponent + 127) << 7 | 5], dtype=torch.int16)
    ref, moved = bits.view(BF16), (bits + steps).view(BF16)
    assert passes(rule("ulp", steps), moved, ref)
    assert passes(rule("ulp", steps), ref, moved)
    assert not passes(rule("ulp", steps - 1), moved, ref)


def test_ulp_has_a_floor_and_knows_zero():
    zero, tiny = torch.zeros(1, dtype=BF16), torch.tensor([1e-4], dtype=BF16)
    assert not passes(rule("ulp", 1), tiny, zero)
    assert passes(rule("ulp", 1, floor=1.1e-4), tiny, zero)
    assert not passes(rule("ulp", 1, floor=0.9e-4), tiny, zero)


@pytest.mark.parametrize(("wrong", "limit"), [(0, 0.0), (1, 0.25), (2, 0.5)])
def test_fractions_count_elements(wrong, limit):
    ref = torch.arange(4)
    value = ref.clone()
    value[:wrong] += 1
    assert passes(statistic("mismatch_fraction_max", limit), value, ref)
    assert not passes(statistic("mismatch_fraction_max", limit - 0.01), value, ref)
    assert passes(statistic("match_fraction_min", 1 - limit), value, ref)
    assert not passes(statistic("match_fraction_min", 1.01 - limit), value, ref)


def test_overlap_is_a_mean_over_rows_that_have_ids():
    ref = torch.tensor([[1, 2, 3, 4], [5, -1, -1, -1], [-1, -1, -1, -1]])
    value = torch.tensor([[9, 4, 3, 8], [-1, 5, 7, 7], [0, 1, 2, 3]])  # 1/2 and 1
    assert passes(statistic("overlap_fraction_min", 0.75), value, ref)
    assert not passes(statistic("overlap_fraction_min", 0.76), value, ref)


def test_sets_ignore_order_and_padding_width_but_not_members():
    tolerance = rule("exact", 0, compare="set_per_row")
    ref = torch.tensor([[3, 1, -1]])
    assert passes(tolerance, torch.tensor([[1, 3, -1, -1]]), ref)
    assert passes(tolerance, torch.tensor([[1, 3]]), ref)
    assert not passes(tolerance, torch.tensor([[1, 2, -1]]), ref)
    assert not passes(tolerance, torch.tensor([[1, 3, 4]]), ref)
    assert not passes(tolerance, torch.tensor([[1, 3, 3]]), ref)


def test_a_value_of_null_is_never_judged():
    assert passes(rule("statistic", None), torch.ones(3), torch.zeros(3))


def test_an_unknown_rule_is_refused():
    with pytest.raises(AssertionError, match="unknown rule"):
        passes(statistic("cosine_min", 0.5), torch.ones(3), torch.zeros(3))


def test_per_axis_judges_every_slice_on_its_own():
    ref = torch.stack((torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2000.0])))
    value = ref + torch.tensor([[0.5], [0.0]])
    assert passes(rule("rel_rms", 0.1), value, ref)
    assert not passes(rule("rel_rms", 0.1, per_axis=0), value, ref)
    report = judge("x", rule("rel_rms", 0.1, per_axis=0), value, ref)
    assert "x[axis 0: 0]" in str(report)


def test_a_failure_names_the_place_and_both_values(folder):
    golden = folder(x=(torch.zeros(2, 3), {"tolerance": rule("abs", 0.1)}))
    value = torch.zeros(2, 3)
    value[1, 2] = 7
    with pytest.raises(AssertionError, match=r"f:x \[unit\] abs 7 <= 0.1.*\(1, 2\): 7.0 instead"):
        golden.check("f", "x", value, "unit")
    assert golden.checked == {("f", "x")}


def test_shape_and_condition_must_exist(folder):
    golden = folder(x=(torch.zeros(2, 3), {"tolerance": rule("abs", 0.1)}))
    with pytest.raises(AssertionError, match="shape"):
        golden.check("f", "x", torch.zeros(3, 2), "unit")
    with pytest.raises(KeyError, match="noquant"):
        golden.check("f", "x", torch.zeros(2, 3), "noquant")


def test_alternatives_are_chosen_by_condition_and_all_of_one_condition_count(folder):
    tight, loose = rule("abs", 0.1), {**rule("abs", 10), "applies_when": "other"}
    golden = folder(
        x=(
            torch.tensor([0.0, 2.0]),
            {"tolerance": rule("abs", 1), "tolerance_alternatives": [tight, loose]},
        )
    )
    value = torch.tensor([0.5, 2.5])
    with pytest.raises(AssertionError, match="0.5 <= 0.1"):
        golden.check("f", "x", value, "unit")
    assert len(golden.check("f", "x", value, "other")) == 1
    assert golden.conditions("f", "x") == {"unit", "other"}


def guarded(folder, guard, *, reference, margin, condition="unit", alternatives=()):
    tolerance = {**rule("exact", 0), "applies_when": condition}
    return folder(
        x=(
            reference,
            {
                "tolerance": tolerance,
                "tolerance_alternatives": list(alternatives),
                "guard": {"tensor": "m", "min": 0.5, **guard},
            },
        ),
        m=(margin, {"tolerance": {**rule("exact", 0), "applies_when": "input"}}),
    )


def refused(golden, condition, size, shape=None):
    """Places whose change is noticed."""
    found = []
    for place in range(size):
        value = torch.zeros(size, dtype=torch.int64)
        value[place] = 1
        value = value if shape is None else value.view(shape)
        try:
            golden.check("f", "x", value, condition)
        except AssertionError:
            found.append(place)
    return found


def test_a_guard_leaves_out_rows_below_its_minimum(folder):
    golden = guarded(
        folder,
        {"shift": 0},
        reference=torch.zeros(3, 2, dtype=torch.int64),
        margin=torch.tensor([1.0, 0.4, 0.5, 0.0]),
    )
    assert refused(golden, "unit", 6, (3, 2)) == [0, 1, 4, 5]


def test_a_guard_may_run_along_another_axis(folder):
    golden = guarded(
        folder,
        {"axis": 1},
        reference=torch.zeros(2, 3, dtype=torch.int64),
        margin=torch.tensor([1.0, 0.0, 1.0]),
    )
    assert refused(golden, "unit", 6, (2, 3)) == [0, 2, 3, 5]


def test_token_lists_without_quantisers_end_at_the_first_near_tie(folder):
    margin = torch.tensor([1.0, 0.0, 1.0, 1.0])
    zeros = torch.zeros(4, dtype=torch.int64)
    for shift, expected in ((0, [0]), (1, [0, 1])):
        golden = guarded(
            folder, {"shift": shift}, reference=zeros, margin=margin, condition="noquant"
        )
        assert refused(golden, "noquant", 4) == expected


def test_a_shifted_guard_always_compares_the_first_element(folder):
    golden = guarded(
        folder,
        {"shift": 1},
        reference=torch.zeros(4, dtype=torch.int64),
        margin=torch.tensor([0.0, 1.0, 0.0, 1.0]),
    )
    assert refused(golden, "unit", 4) == [0, 2]


def test_a_guard_does_not_touch_the_alternatives(folder):
    other = {**rule("exact", 0), "applies_when": "other"}
    golden = guarded(
        folder,
        {},
        reference=torch.zeros(2, dtype=torch.int64),
        margin=torch.zeros(2),
        alternatives=[other],
    )
    assert refused(golden, "unit", 2) == []
    assert refused(golden, "other", 2) == [0, 1]


def test_records_are_compared_decoded(folder):
    dequantised = {"tolerance": rule("abs", 0.25, compare="dequantised")}
    codes = torch.full((1, 8), 0x22, dtype=torch.uint8)  # sixteen times 1.0
    golden = folder(
        **{
            "r.q": (codes, dequantised),
            "r.s": (torch.tensor([[0x38]], dtype=torch.uint8), dequantised),
        }
    )
    assert golden.records("f", "r").tolist() == [[1.0] * 16]
    golden.check_records("f", "r", torch.full((1, 16), 1.25), "unit")
    assert golden.checked == {("f", "r.q"), ("f", "r.s")}
    with pytest.raises(AssertionError, match="abs 0.5"):
        golden.check_records("f", "r", torch.full((1, 16), 1.5), "unit")
    with pytest.raises(KeyError, match="check_records"):
        golden.check("f", "r.q", codes, "unit")


def test_a_part_of_the_reference_may_be_judged_alone(folder):
    golden = guarded(
        folder,
        {},
        reference=torch.tensor([[0, 0], [5, 5], [7, 7]]),
        margin=torch.tensor([1.0, 1.0, 0.0]),
    )
    part = lambda t: t[1:]  # noqa: E731
    golden.check("f", "x", torch.tensor([[5, 5], [0, 0]]), "unit", part)
    with pytest.raises(AssertionError, match="2 of 4 elements compared"):
        golden.check("f", "x", torch.tensor([[5, 6], [7, 7]]), "unit", part)


def test_a_caller_may_bring_a_rule(folder):
    golden = folder(x=(torch.zeros(2), {"tolerance": rule("exact", 0)}))
    golden.check_by({"kind": "abs", "value": 1}, "f", "x", torch.ones(2))
    with pytest.raises(AssertionError, match="caller's rule"):
        golden.check_by({"kind": "abs", "value": 0.5}, "f", "x", torch.ones(2))
    assert golden.checked == {("f", "x")}


def test_inputs_are_no_outputs(folder):
    golden = folder(
        a=(torch.zeros(1), {"tolerance": {**rule("exact", 0), "applies_when": "input"}}),
        b=(torch.zeros(1), {"tolerance": rule("exact", 0)}),
        c=(
            torch.zeros(1),
            {
                "tolerance": {**rule("exact", 0), "applies_when": "input"},
                "tolerance_alternatives": [rule("abs", 1)],
            },
        ),
    )
    assert golden.outputs() == [("f", "b"), ("f", "c")]


def test_a_manifest_of_another_format_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text('{"tolerance_format": 2, "tensors": []}')
    with pytest.raises(ValueError, match="tolerance_format 2"):
        Golden(tmp_path)
