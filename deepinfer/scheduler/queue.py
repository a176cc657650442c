"""Owns the waiting requests, their order and their age. Knows nothing of rows and pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappush, heappushpop

from deepinfer.scheduler.limits import PASSED_OVER_LIMIT
from deepinfer.scheduler.policy import Waiting, admit_order


class WaitingQueue:
    """Requests that have no row.

    Age without a counter a request: a request is passed over in a step in which one with a later
    stamp is admitted. So the number of its passings is the number of steps whose latest admitted
    stamp exceeds its own, and it reaches PASSED_OVER_LIMIT exactly when its stamp is below the
    smallest of the PASSED_OVER_LIMIT largest of those step values, which a small heap keeps.
    """

    def __init__(self) -> None:
        self._resumed: dict[str, Waiting] = {}
        self._fresh: dict[int, OrderedDict[str, Waiting]] = {}
        self._where: dict[str, Waiting] = {}
        self._latest: list[int] = []
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._where)

    def push(self, request_id: str, priority: int, *, resumed: bool) -> None:
        """Queue a request; its age starts at 0."""
        waiting = Waiting(request_id, priority, self._stamp, resumed)
        self._stamp += 1
        self._where[request_id] = waiting
        if resumed:
            self._resumed[request_id] = waiting
        else:
            self._fresh.setdefault(priority, OrderedDict())[request_id] = waiting

    def remove(self, request_id: str) -> Waiting:
        """Take a request out."""
        waiting = self._where.pop(request_id)
        if waiting.resumed:
            del self._resumed[request_id]
        else:
            line = self._fresh[waiting.priority]
            del line[request_id]
            if not line:
                del self._fresh[waiting.priority]
        return waiting

    def aged(self, waiting: Waiting) -> bool:
        """Whether it was passed over PASSED_OVER_LIMIT times: then nobody may go before it."""
        return waiting.stamp < self._aged_before

    def order(self) -> Iterator[Waiting]:
        """The queue in the order of admission; do not change it meanwhile."""
        lines = [line.values() for line in self._fresh.values()]
        return admit_order(self._resumed.values(), lines, self._aged_before)

    def admitted(self, latest_stamp: int) -> None:
        """Note a step that admitted requests; `latest_stamp` is the largest of their stamps."""
        if len(self._latest) < PASSED_OVER_LIMIT:
            heappush(self._latest, latest_stamp)
        else:
            heappushpop(self._latest, latest_stamp)

    @property
    def _aged_before(self) -> int:
        return self._latest[0] if len(self._latest) == PASSED_OVER_LIMIT else -1
