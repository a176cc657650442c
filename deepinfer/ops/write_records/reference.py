"""Stores the window records of a step. Knows nothing of how they were made."""

from __future__ import annotations

from torch import Tensor

from deepinfer.ops.batch import RingPlaces, write_ring


def write_records(ring: Tensor, places: RingPlaces, records: Tensor) -> None:
    """Write one record a token into its request's ring.

    Args:
        ring: [slots, rows, bytes] uint8 view, changed in place.
        places: `ring_places` of the tokens for this length.
        records: [tokens, bytes] uint8.
    """
    write_ring(ring, places, records)
