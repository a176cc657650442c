"""What the kernels of the compressor and of the residual streams refuse; nothing is launched."""

import pytest
import torch

from deepinfer.ops.cases import Maker
from deepinfer.ops.compress.cases import case as compress_case
from deepinfer.ops.engram_gate.cases import case as gate_case
from deepinfer.ops.mhc_collapse.cases import case as collapse_case
from deepinfer.ops.mhc_update.cases import case as update_case
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops.compress import triton as compress
from deepinfer.ops.engram_gate import triton as engram_gate
from deepinfer.ops.engram_rows import triton as engram_rows
from deepinfer.ops.mhc_collapse import triton as mhc_collapse
from deepinfer.ops.mhc_update import triton as mhc_update

FACTS = {"arch": "sm90", "quantised": True, "hidden": 5120, "head_dim": 512, "streams": 4}
KERNELS = (compress, engram_gate, engram_rows, mhc_collapse, mhc_update)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_release_is_served_on_both_gpus_and_nowhere_else(kernel):
    assert kernel.refuses(**FACTS) is None
    assert kernel.refuses(**FACTS | {"arch": "sm100"}) is None
    assert "cpu" in str(kernel.refuses(**FACTS | {"arch": "cpu"}))


@pytest.mark.parametrize(
    ("kernel", "fact", "reason"),
    [
        (compress, {"head_dim": 96}, "head_dim 96"),
        (compress, {"hidden": 100}, "hidden 100"),
        (compress, {"quantised": False}, "bf16"),
        (engram_gate, {"quantised": False}, "bf16"),
        (mhc_collapse, {"quantised": False}, "bf16"),
        (mhc_collapse, {"streams": 2}, "2 streams"),
        (mhc_update, {"quantised": False}, "bf16"),
        (mhc_update, {"streams": 2}, "2 streams"),
    ],
)
def test_other_sizes_and_numerics_are_refused_with_a_reason(kernel, fact, reason):
    assert reason in str(kernel.refuses(**FACTS | fact))


def test_weights_and_inputs_that_do_not_fit_are_named():
    make = Maker(SMALL, quantised=False)
    batch = make.batch([(0, 3)])
    given = compress_case(make, batch)
    with pytest.raises(ValueError, match="bf16 weights, not torch.float32"):
        compress.pack(given["weights"])
    weights = compress_case(Maker(SMALL), batch)["weights"]
    with pytest.raises(ValueError, match="index keys of 24 channels"):
        compress.pack(weights._replace(wk=weights.wk[:24]))
    packed = compress.pack(weights)
    hidden = given["hidden"].to(torch.bfloat16)
    with pytest.raises(ValueError, match="write FP4 records"):
        compress.compress(**given | {"hidden": hidden, "weights": packed})
    for kernel, case in ((engram_gate, gate_case), (mhc_collapse, collapse_case)):
        run = getattr(kernel, kernel.__name__.split(".")[-2])
        with pytest.raises(ValueError, match="use reference"):
            run(**case(make, batch))
    with pytest.raises(ValueError, match="use reference"):
        mhc_update.mhc_update(**update_case(make, batch))
