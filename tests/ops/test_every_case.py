"""Inputs that `cases.py` of every operation makes: whole calls, the same ones for the same seed."""

import copy
import importlib

import pytest

from deepinfer.ops.cases import Maker
from tests.ops.small import SMALL, same
from tests.ops.test_row_independence import PREFILL, WITH_CASES, WRITING, modules


@pytest.mark.parametrize("quantised", [True, False], ids=["quantised", "plain"])
@pytest.mark.parametrize("name", sorted(WITH_CASES))
def test_a_reference_takes_its_case_and_gives_the_same_for_the_same_seed(name, quantised):
    op, cases = modules(name)
    results = []
    for _ in range(2):
        make = Maker(SMALL, quantised=quantised, seed=3)
        case = cases.case(make, make.batch(PREFILL))
        results.append(op.reference(**case))
    assert same(*results) if results[0] is not None else name in WRITING


def test_cases_of_the_end_of_a_step_hold_accepted_and_refused_drafts_and_ended_rows():
    cases = importlib.import_module("deepinfer.ops.conclude.cases")
    make = Maker(SMALL)
    case = cases.case(make, make.batch([(p, 1) for p in range(60)]))
    before = copy.deepcopy(case["table"])
    op, _ = modules("conclude")
    verified, accepted, flags = op.reference(**case).packed[:, :3].unbind(1)
    assert 0 < int(accepted.sum()) < int(verified.sum())
    assert bool((flags > 0).any())
    assert bool(before.ended[1:].any())
    assert not bool(case["table"].length.equal(before.length))
