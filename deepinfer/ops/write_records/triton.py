"""Window records into their rings in one Triton launch. Knows nothing of how they were made."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.batch import RingPlaces
from deepinfer.ops.portable import refuses_arch


@triton.jit
def _write(
    ring_ptr, slot_ptr, row_ptr, record_ptr, ring_slot,
    BYTES: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    token, byte = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    ring_ptr += tl.load(slot_ptr + token) * ring_slot + tl.load(row_ptr + token) * BYTES
    value = tl.load(record_ptr + token * BYTES + byte, byte < BYTES, 0)
    tl.store(ring_ptr + byte, value, byte < BYTES)


def write_records(ring: Tensor, places: RingPlaces, records: Tensor) -> None:
    """As the reference; of tokens with the same place any one may stay."""
    tokens, size = records.shape
    assert ring.stride(1) == size, "ring rows lie side by side"
    if tokens:
        _write[(tokens,)](
            ring, places.slots, places.rows, records.contiguous(), ring.stride(0),
            size, triton.next_power_of_2(size),
            num_warps=1, launch_pdl=True,
        )  # fmt: skip


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
