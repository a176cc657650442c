"""Every Triton implementation at the sizes of the release: a row's bits in any company."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.ops.cases import Maker, rows_of
from tests.gpu.every_kernel import ALL, FIRST, WAYS, bound, packed, release, tensors

pytest.importorskip("triton")

pytestmark = pytest.mark.gpu
# One token a request, on both sides of window and page borders; more than any tile has rows.
MANY = [((29 * i) % 640, 1) for i in range(300)]
COUNTS = (1, 2, 7, 16, 17, 33, 64, 65, 129, 300)
# What these write into pages, rings and tables of rows, other tests look at.
WRITING = {"compress", "conclude", "decoding", "draft_start", "draft_store", "write_records"}
NAMES = [n for n, op in ALL.items() if any(i.name == "triton" for i in op.implementations)]
# What the release gets on this device, then what other devices get.
WISHES = {n: [""] for n in NAMES} | {n: ["", "triton"] for n in FIRST}
for name in NAMES:
    WISHES[name] += [i.name for i in ALL[name].implementations if i.name == "portable"]
CASES = [
    (name, wish, way)
    for name in NAMES
    if name not in WRITING
    for wish in WISHES[name]
    for way in WAYS.get(name, [{}])
]


def spoil() -> None:
    torch.full((1 << 28,), 255, dtype=torch.uint8, device="cuda")


def same(found: Any, wanted: Any, index: Tensor) -> bool:
    pairs = zip(tensors(found), tensors(wanted), strict=True)
    return all(
        torch.equal(one.contiguous().view(torch.uint8), other[index].view(torch.uint8))
        for one, other in pairs
    )


def some(case: dict[str, Any], name: str, per_token: tuple[str, ...], index: Tensor):
    kept = rows_of(case, per_token, index)
    if name == "draft_attention":  # angles of a block follow each other
        block = case["q"].shape[1]
        ahead = torch.arange(block, device=index.device)
        kept["by"] = case["by"].rows((index.unsqueeze(1) * block + ahead).flatten())
    return kept


@pytest.mark.parametrize(("name", "wish", "way"), CASES)
def test_a_row_has_the_same_bits_among_any_number_of_rows(gpu, name, wish, way):
    run = bound(release(), name, gpu.arch, wish)
    assert run is not None
    module = importlib.import_module(f"deepinfer.ops.{name}.cases")
    make = Maker(release(), device=gpu.device, seed=4)
    case = packed(run, module.case(make, make.batch(MANY), **way))
    if name == "sample":
        case["keep_law"] = False
    spoil()
    whole = run(**case)
    assert tensors(whole)
    for count in COUNTS:
        for first in {0, len(MANY) // 2, len(MANY) - count}:
            index = torch.arange(first, min(first + count, len(MANY)), device=gpu.device)
            spoil()
            found = run(**some(case, name, module.PER_TOKEN, index))
            assert same(found, whole, index), f"{count} rows from {first} on"


@pytest.mark.parametrize("ratio", [1, 2])
def test_what_a_compressor_writes_does_not_depend_on_the_other_rows(gpu, ratio):
    run = bound(release(), "compress", gpu.arch)
    assert run is not None
    module = importlib.import_module("deepinfer.ops.compress.cases")

    def written(count: int) -> list[Tensor]:
        """Pages and pairs after so many tokens a step; of number 0, which takes what goes nowhere,
        nothing."""
        make = Maker(release(), device=gpu.device, seed=4)
        case = packed(run, module.case(make, make.batch(MANY), ratio=ratio))
        for part in torch.arange(len(MANY), device=gpu.device).split(count):
            spoil()
            run(**rows_of(case, module.PER_TOKEN, part))
        parts = (*case["pages"], case["pairs"])
        return [t[1:] for t in parts if t is not None]

    whole = written(len(MANY))
    for count in (1, 8, 33, 64, 129):
        for one, other in zip(written(count), whole, strict=True):
            assert torch.equal(one, other), f"{count} tokens a step"
