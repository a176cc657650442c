"""Sparse attention for any GPU from SM90 on: the two launches of few tokens, for any number.

Knows nothing of how entries were selected.
"""

from __future__ import annotations

from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.sparse_attention.triton_split import choose, refuses_sizes, tiled


def sparse_attention(
    q: Tensor,
    records: Tensor,
    ring: Tensor,
    ids: Tensor | None,
    pages: PageViews | None,
    sink: Tensor,
    batch: Batch,
    by: Rotation,
    *,
    window: int,
    scale: float,
    layout: Records,
) -> Tensor:
    """As the reference, for bf16 queries and quantised records.

    Raises:
        ValueError: records are plain.
    """
    given, tiles = (q, records, ring, ids, pages, sink, batch, by), choose(len(q))
    return tiled(*given, window=window, scale=scale, layout=layout, tiles=tiles)


def refuses(*, arch: str, quantised: bool, head_dim: int, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch) or refuses_sizes(quantised=quantised, head_dim=head_dim)
