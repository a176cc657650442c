"""One call of every operation with portable kernels, on meta tensors of the release's sizes.

As aot_launches.py for the others. Knows nothing of compilers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from deepinfer.ops.aot_launches import (
    CHOICES,
    EPS,
    EXPERTS,
    GROUPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    LIMIT,
    LOW,
    RANK,
    _bf16,
    _bytes,
    _fp32,
    _hyper,
    _pair,
)
from deepinfer.ops.experts import ExpertWeights
from deepinfer.ops.experts import portable as experts
from deepinfer.ops.formats import Fp4Weight, Fp8Weight
from deepinfer.ops.grouped_output import portable as grouped_output
from deepinfer.ops.linear_fp8 import portable as linear
from deepinfer.ops.low_rank import portable as low_rank
from deepinfer.ops.mhc_boundary import portable as boundary
from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.shared_expert import portable as shared_expert


def portable_launches(tokens: Sequence[int]) -> Mapping[str, Callable[[], object]]:
    """Calls by a name each, for every number of tokens."""
    found: dict[str, Callable[[], object]] = {}
    for count in tokens:
        found |= {f"portable {name} T={count}": call for name, call in _calls(count).items()}
    return found


def _experts(count: int) -> ExpertWeights:
    def matrix(out: int, columns: int) -> Fp4Weight:
        return Fp4Weight(_bytes(count, out, columns // 2), _bytes(count, out, columns // 32))

    return ExpertWeights(matrix(2 * INNER, HIDDEN), matrix(HIDDEN, INNER))


def _calls(t: int) -> dict[str, Callable[[], object]]:
    ids, share = torch.empty((t, CHOICES), dtype=torch.int64, device="meta"), _fp32(t, CHOICES)
    pending = Pending(_bf16(t, HIDDEN), _fp32(t, 4), _fp32(t, 4, 4))
    calls: dict[str, Callable[[], object]] = {
        f"experts {count}": partial(
            experts.experts, _pair(t, HIDDEN), ids, share, _experts(count), limit=LIMIT
        )
        for count in EXPERTS
    }
    return calls | _linears(t) | {
        "boundary": partial(
            boundary.mhc_boundary, _bf16(t, 4, HIDDEN), pending, _fp32(t, 4), _hyper(),
            eps=EPS, hc_eps=EPS, iterations=20, quantise=True,
        )
    }  # fmt: skip


def _fp8(out: int, columns: int) -> Fp8Weight:
    return Fp8Weight(_bytes(out, columns), _bytes(out // 32, columns // 32))


def _linears(t: int) -> dict[str, Callable[[], object]]:
    """Products with FP8 weights. Sizes are no constants of their kernel but for full tiles."""
    shared = shared_expert.PackedShared(_fp8(2 * INNER, HIDDEN), _fp8(HIDDEN, INNER))
    output = grouped_output.PackedOutput(
        _fp8(GROUPS * LOW, HEADS * HEAD_DIM // GROUPS), _fp8(HIDDEN, GROUPS * LOW)
    )
    both = low_rank.PackedLowRank(_fp8(RANK + HEAD_DIM, HIDDEN), _bf16(RANK))
    return {
        "linear": partial(linear.linear_fp8, _pair(t, RANK), _fp8(HEADS * HEAD_DIM, RANK)),
        "linear of plain input": partial(
            linear.linear_fp8, _bf16(t, 3 * HIDDEN), _fp8(HIDDEN, 3 * HIDDEN)
        ),
        "linear of odd rows": partial(linear.linear_fp8, _pair(t, 256), _fp8(96, 256)),
        "low rank": partial(low_rank.low_rank, _pair(t, HIDDEN), both, eps=EPS, quantise=True),
        "shared expert": partial(
            shared_expert.shared_expert, _pair(t, HIDDEN), shared, limit=LIMIT
        ),
        "output": partial(
            grouped_output.grouped_output, _bf16(t, HEADS, HEAD_DIM), output, groups=GROUPS
        ),
    }
