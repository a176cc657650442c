"""The first rows of every block of rows, of several tensors at once. Knows nothing of drafts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from deepinfer.ops.registry import REFERENCE, Op, lazy


def _reference(tensors: Sequence[Tensor], *, block: int, count: int) -> tuple[Tensor, ...]:
    """Copies of the first `count` rows of each block of `block` rows.

    Args:
        tensors: at most ten of any shapes and dtypes, with equally many rows.
        block: divides the number of rows.
        count: at most `block`.
    """
    return tuple(rows.unflatten(0, (-1, block))[:, :count].flatten(0, 1) for rows in tensors)


leading_rows = Op(_reference, "leading_rows")
leading_rows.add(
    lazy(
        leading_rows,
        "triton",
        needs="triton",
        run="deepinfer.ops.triton_leading:leading_rows",
        refuses="deepinfer.ops.triton_leading:refuses",
        pack="deepinfer.ops.triton_leading:pack",
        order_class=REFERENCE,
    )
)
