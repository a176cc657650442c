"""The bits of a row never depend on the other rows: the promise that all of sampling rests on.

Of what an operation writes into pages, rings and tables of rows its own tests say the same.
"""

import importlib.util
import pkgutil

import pytest
import torch

import deepinfer.ops
from deepinfer.ops.cases import Maker, rows_of
from tests.ops.small import SMALL, TWO_STREAMS, same

WITH_CASES = sorted(
    module.name
    for module in pkgutil.iter_modules(deepinfer.ops.__path__)
    if module.ispkg and importlib.util.find_spec(f"deepinfer.ops.{module.name}.cases")
)
WRITING = {"compress", "conclude", "decoding", "draft_start", "draft_store", "write_records"}
RETURNING = [name for name in WITH_CASES if name not in WRITING]
# One token a request, at positions on both sides of the window and of page borders.
DECODE = [(p, 1) for p in (0, 1, 2, 14, 15, 16, 17, 40, 126, 127, 128, 129, 200, 255, 256, 300, 5)]
PREFILL = [(0, 150), (37, 1), (100, 110)]


def modules(name):
    package = importlib.import_module(f"deepinfer.ops.{name}")
    return getattr(package, name), importlib.import_module(f"deepinfer.ops.{name}.cases")


@pytest.mark.parametrize("quantised", [True, False], ids=["quantised", "plain"])
@pytest.mark.parametrize("name", RETURNING)
def test_a_row_alone_equals_the_row_in_a_batch(name, quantised):
    op, cases = modules(name)
    for arch in (SMALL, TWO_STREAMS):
        make = Maker(arch, quantised=quantised)
        case = cases.case(make, make.batch(DECODE))
        whole = op.reference(**case)
        for index in (*torch.arange(len(DECODE)).split(1), torch.arange(len(DECODE)).flip(0)[3:]):
            case_of = rows_of(case, cases.PER_TOKEN, index)
            if name == "draft_attention":
                case_of["by"] = case["by"].rows(block_rows(index, case["q"].shape[1]))
            assert same(op.reference(**case_of), take(whole, index)), f"rows {index.tolist()}"


def block_rows(index, block):
    return (index.unsqueeze(1) * block + torch.arange(block)).flatten()


def take(value, index):
    if isinstance(value, torch.Tensor):
        return value[index]
    return None if value is None else type(value)(*(take(part, index) for part in value))


@pytest.mark.parametrize("name", [name for name in RETURNING if name != "draft_attention"])
def test_a_row_does_not_depend_on_how_many_rows_there_are(name):
    op, cases = modules(name)
    make = Maker(SMALL)
    case = cases.case(make, make.batch([(p % 300, 1) for p in range(333)]))
    whole = op.reference(**case)
    for count in (1, 2, 3, 5, 8, 17, 64, 200):
        index = torch.arange(333 - count, 333)
        assert same(op.reference(**rows_of(case, cases.PER_TOKEN, index)), take(whole, index))


def test_every_operation_has_cases():
    packages = {
        module.name for module in pkgutil.iter_modules(deepinfer.ops.__path__) if module.ispkg
    }
    assert packages == set(WITH_CASES)
