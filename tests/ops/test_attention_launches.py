"""What the attention kernels refuse, and which of them a step of some size launches."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from deepinfer.ops.cases import Maker
from deepinfer.ops.sparse_attention.cases import case
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops import aot
from deepinfer.ops.sparse_attention import triton as kernel
from deepinfer.ops.sparse_attention import triton_slices

WIDER = replace(SMALL, head_dim=128)


def launched(arch: Any, *slices: int, ratio: int = 1) -> list[str]:
    make = Maker(arch)
    given = case(make, make.batch([(count, count) for count in slices]), ratio=ratio)
    return [v.kernel.__name__ for v in aot.variants({"": lambda: kernel.sparse_attention(**given)})]


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_from_96_tokens_on_one_launch_does_all(ratio):
    assert launched(SMALL, 95, ratio=ratio) == ["_weigh", "_sum"]
    assert launched(SMALL, 96, ratio=ratio) == ["attend"]


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_a_long_slice_has_launches_of_its_own(ratio):
    slices = ["_decode", "attend_rows"]
    assert launched(WIDER, 127, ratio=ratio) == ["attend"]
    assert launched(WIDER, 128, ratio=ratio) == slices
    assert launched(SMALL, 128, ratio=ratio) == ["attend"]  # too narrow
    assert launched(WIDER, 140, 130, ratio=ratio) == slices  # the same variants
    assert launched(WIDER, 3, 140, 130, 2, 127, ratio=ratio) == ["attend", *slices]


def test_a_slice_of_too_long_a_request_decodes_its_keys_where_it_meets_them():
    make = Maker(WIDER)
    given = case(make, make.batch([(9, 200)]))
    pages, entries = given["batch"].page_table.shape[1], given["pages"].entries
    rows = triton_slices.rows(200, 128, given["ring"], given["pages"], given["batch"])
    assert rows == given["ring"].shape[1] + 200 + pages * entries
    longer = given["batch"].page_table.repeat(1, 128 * 200 // entries)
    given["batch"] = replace(given["batch"], page_table=longer)
    assert not triton_slices.rows(200, 128, given["ring"], given["pages"], given["batch"])
    call = partial(kernel.sparse_attention, **given)
    assert [v.kernel.__name__ for v in aot.variants({"": call})] == ["attend"]


def test_long_key_lists_go_in_two_launches():
    assert launched(replace(SMALL, index_topk=1000), 100) == ["_weigh", "_sum"]
    assert launched(replace(SMALL, index_topk=900), 100) == ["attend"]


def test_the_kernels_say_what_they_do_not_serve():
    facts: dict[str, Any] = {"arch": "sm90", "quantised": True, "head_dim": 512}
    assert kernel.refuses(**facts) is None
    assert "sm100" in str(kernel.refuses(**dict(facts, arch="sm100")))
    assert "quantised" in str(kernel.refuses(**dict(facts, quantised=False)))
    for width in (32, 96, 1024):
        assert f"head_dim {width}" in str(kernel.refuses(**dict(facts, head_dim=width)))
    make = Maker(SMALL, quantised=False)
    with pytest.raises(ValueError, match="quantised records"):
        kernel.sparse_attention(**case(make, make.batch([(0, 3)])))


def test_no_tokens_give_no_rows():
    make = Maker(SMALL)
    given = case(make, make.batch([(4, 3)]))
    none = {name: given[name][:0] for name in ("q", "records", "ids")}
    assert kernel.in_one(**given | none).shape == (0, 4, 64)
    assert kernel.sparse_attention(**given | none).shape == (0, 4, 64)
