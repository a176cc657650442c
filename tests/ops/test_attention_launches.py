"""What the attention kernels refuse, and which of them a step of some size launches."""

from dataclasses import replace
from typing import Any

import pytest

from deepinfer.ops.cases import Maker
from deepinfer.ops.sparse_attention.cases import case
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops import aot
from deepinfer.ops.sparse_attention import triton as kernel


def launched(arch: Any, tokens: int, *, ratio: int = 1) -> list[str]:
    make = Maker(arch)
    given = case(make, make.batch([(tokens, tokens)]), ratio=ratio)
    return [v.kernel.__name__ for v in aot.variants({"": lambda: kernel.sparse_attention(**given)})]


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_from_96_tokens_on_one_launch_does_all(ratio):
    assert launched(SMALL, 95, ratio=ratio) == ["_weigh", "_sum"]
    assert launched(SMALL, 96, ratio=ratio) == ["attend"]


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
