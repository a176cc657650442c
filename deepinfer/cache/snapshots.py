"""Owns the places of window snapshots: by key, for a limited time. Knows nothing of their bytes."""

from __future__ import annotations

from collections import OrderedDict


class SnapshotPool:
    """Places 1..places, each holding the windows before one page border; 0 is none.

    A snapshot is valid for exactly one key: that of the page which ends at its border. One that
    was not used for `ttl` seconds is forgotten; when all places are taken, so is the one that was
    not used for the longest time.

    Args:
        places: snapshots held at a time, >= 0.
        ttl: seconds.
    """

    def __init__(self, places: int, ttl: float):
        self.places = places
        self.ttl = ttl
        self._free = list(range(places, 0, -1))
        self._held: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # unused longest first

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, key: bytes, now: float) -> bool:
        """Whether `find` would find it."""
        held = self._held.get(key)
        return held is not None and now - held[1] <= self.ttl

    def find(self, key: bytes, now: float) -> int:
        """The place of a snapshot that is about to be used, 0 if there is none."""
        self._expire(now)
        held = self._held.get(key)
        if held is None:
            return 0
        self._held[key] = (held[0], now)
        self._held.move_to_end(key)
        return held[0]

    def store(self, key: bytes, now: float) -> int:
        """A place for a new snapshot; 0 if there are no places or the key has one already."""
        self._expire(now)
        if not self.places or key in self._held:
            return 0
        if not self._free:
            self._drop(next(iter(self._held)))
        place = self._free.pop()
        self._held[key] = (place, now)
        return place

    def drop(self, key: bytes) -> None:
        """Forget a snapshot, if it is there."""
        if key in self._held:
            self._drop(key)

    def reset(self) -> None:
        """Forget all."""
        for key in list(self._held):
            self._drop(key)

    def _expire(self, now: float) -> None:
        while self._held:
            key = next(iter(self._held))
            if now - self._held[key][1] <= self.ttl:
                return
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._free.append(self._held.pop(key)[0])
