"""Owns the rows and their pages: one request a row, with bounds of its length in NumPy columns.

Knows nothing of budgets, policies or the order of requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from deepinfer.cache import PagePool, pages_for
from deepinfer.request import Request, RequestMetrics
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.policy import AGED_PRIORITY, Candidate
from deepinfer.step import PageAppend, Prefill, RowSampling

Ints = NDArray[np.int64]

# States of a row and the moves between them.
FREE, PREFILL, DECODE, CLOSED, DRAINING = range(5)
MOVES = {
    FREE: (PREFILL,),
    PREFILL: (DECODE, DRAINING, FREE),
    DECODE: (CLOSED, DRAINING, FREE),
    CLOSED: (DRAINING, FREE),  # its limit is reached for certain, its last result is awaited
    DRAINING: (FREE,),  # it ended, but an uncollected step computes it
}


@dataclass(slots=True, eq=False)
class Job:
    """A request that is not finished.

    Attributes:
        request: as it came.
        sampling: how its tokens are chosen.
        arrival: ascending in the order of arrival.
        limit: tokens of prompt and output after which it ends.
        target: tokens known when it was queued, all to be prefilled.
        outputs: ids generated so far.
        pages: its page table.
        row: its row, 0 while it waits.
        planned: leading tokens whose prefill is planned.
        aged: it waited so long that others are preempted before it.
        first_token: time of it, seconds.
        preemptions: how often it was preempted.
        drafts: verified and accepted in the rows that it left, by place in the block.
        first_key: of its key chain, None if its pages are not shared.
        keys: of its leading full pages.
        published: leading pages that others may find (or found before it).
        cached: leading tokens that were not computed in its row.
        first_hit: pages it shared when it was admitted first, None before.
        reused: `cached` of its first row.
        windows: snapshot place of the windows before `cached`, 0 = none.
        saved: key of the last snapshot of its output, None = none.
    """

    request: Request
    sampling: RowSampling
    arrival: int
    limit: int
    target: int
    outputs: list[int] = field(default_factory=list[int])
    pages: list[int] = field(default_factory=list[int])
    row: int = 0
    planned: int = 0
    aged: bool = False
    first_token: float | None = None
    preemptions: int = 0
    drafts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    first_key: bytes | None = None
    keys: list[bytes] = field(default_factory=list[bytes])
    published: int = 0
    cached: int = 0
    first_hit: int | None = None
    reused: int = 0
    windows: int = 0
    saved: bytes | None = None

    @property
    def urgency(self) -> int:
        """Its priority, smaller goes first; ahead of all others once it waited too long."""
        return AGED_PRIORITY if self.aged else self.request.priority

    def count_drafts(self, verified: tuple[int, ...], accepted: tuple[int, ...]) -> None:
        """Add those of the row that it leaves."""
        if self.drafts[0]:
            verified = tuple(map(sum, zip(self.drafts[0], verified, strict=True)))
            accepted = tuple(map(sum, zip(self.drafts[1], accepted, strict=True)))
        self.drafts = verified, accepted

    def metrics(self, now: float) -> RequestMetrics:
        """Its times and counts, if it ends at `now` and the drafts of its row are counted."""
        arrival = self.request.arrival
        return RequestMetrics(arrival, self.first_token, now, self.preemptions, *self.drafts)


class RowTable:
    """Rows 1..num_slots; index 0 of every column is the reserved row and stays FREE.

    Attributes:
        pool: all pages.
        jobs: the request of every row.
        holders: name of the request that is or was the last in every row.
        state: [rows + 1] int8, one of the states above.
        lo, hi: [rows + 1]; the tokens known for a row after all planned steps are between `lo` and
            min(hi, limit), unless it ended or a mask was late. Equal when no step is uncollected.
        limit: [rows + 1], as in `Job`.
        pages: [rows + 1], entries of its page table.
        last_step: [rows + 1], number of the last step that computes it, -1 = none.
        constrained: [rows + 1] bool, its request needs masks.
        decoding: [n] rows in the state DECODE as of `update_decoding`, ascending.
        released: rows freed since they were last asked for.
    """

    def __init__(self, limits: Limits):
        rows = limits.num_slots
        self.pool = PagePool(limits.num_pages)
        self.jobs: list[Job | None] = [None] * (rows + 1)
        self.holders: list[str | None] = [None] * (rows + 1)
        self.state = np.zeros(rows + 1, np.int8)
        self.lo, self.hi, self.limit, self.pages, self.last_step = np.zeros((5, rows + 1), np.int64)
        self.decoding = self.which(DECODE)
        self.constrained = np.zeros(rows + 1, np.bool_)
        self._told = np.zeros(rows + 1, np.bool_)  # the decoding set that was told last
        self.released: list[int] = []
        self._page_tokens = limits.page_tokens
        self._free = list(range(1, rows + 1))
        self._changed = False  # whether `decoding` is out of date

    @property
    def num_free(self) -> int:
        """Rows without a request."""
        return len(self._free)

    def job(self, row: int) -> Job:
        """The request of a row that is not free."""
        job = self.jobs[row]
        assert job is not None, f"row {row} is free"
        return job

    def which(self, state: int) -> Ints:
        """[n] rows in a state, ascending."""
        return np.flatnonzero(self.state == state)

    def move(self, row: int, state: int) -> None:
        """Change the state of a row."""
        before = int(self.state[row])
        assert state in MOVES[before], f"row {row} moves from state {before} to {state}"
        self.state[row] = state
        self._changed = True

    def enter(self, job: Job, pages: list[int], start: int) -> list[PageAppend]:
        """Give a request the lowest free row, to prefill its known tokens from `start` on.

        Args:
            job: the request.
            pages: shared pages that hold its first tokens; it becomes one of their owners.
            start: first position to compute.
        """
        job.row, job.planned = heappop(self._free), start
        self.pool.share(pages)
        job.pages = list(pages)
        self.move(job.row, PREFILL)
        self.jobs[job.row] = job
        self.holders[job.row] = job.request.request_id
        self.lo[job.row] = self.hi[job.row] = job.target
        self.limit[job.row] = job.limit
        self.pages[job.row] = len(pages)
        self.last_step[job.row] = -1
        self.constrained[job.row] = job.request.constrained
        return [PageAppend(job.row, place, page) for place, page in enumerate(pages)]

    def free(self, row: int) -> Job:
        """Free a row and its pages; returns its request. Nowhere else are pages freed."""
        job = self.job(row)
        self.move(row, FREE)
        self.jobs[row] = None
        self.constrained[row] = False
        heappush(self._free, row)
        self.pool.give_back(job.pages)
        self.released.append(row)
        job.row, job.pages = 0, []
        return job

    def append_pages(self, row: int, count: int) -> list[PageAppend]:
        """Lengthen the page table of a row; the caller knows that so many pages are free."""
        job = self.job(row)
        first = len(job.pages)
        job.pages += self.pool.take(count)
        self.pages[row] += count
        return [PageAppend(row, first + i, job.pages[first + i]) for i in range(count)]

    def page_decoding(self, drafts: int) -> list[PageAppend] | None:
        """Give decoding rows pages for all that they may write when each verifies `drafts`.

        Returns:
            the new pages; None, and nothing is changed, if there are not enough.
        """
        # The last token that a step generates is written by the next one.
        longest = np.minimum(self.hi[self.decoding] + 1 + drafts, self.limit[self.decoding])
        need = pages_for(longest - 1, self._page_tokens) - self.pages[self.decoding]
        short = need > 0
        if not short.any():
            return []
        rows, counts = self.decoding[short].tolist(), need[short].tolist()
        if sum(counts) > self.pool.free:
            return None
        return [
            page
            for row, count in zip(rows, counts, strict=True)
            for page in self.append_pages(row, count)
        ]

    def update_decoding(self) -> None:
        """Bring `decoding` up to date; rows that reach their limit for certain leave it.

        Nothing is certain of constrained rows while a step is uncollected: their masks may be late.
        """
        if self._changed:
            self.decoding = self.which(DECODE)
        rows = self.decoding
        full = rows[(self.lo[rows] >= self.limit[rows]) & ~self.constrained[rows]]
        for row in full.tolist():
            self.move(row, CLOSED)
        if len(full):
            self.decoding = self.which(DECODE)
        self._changed = False

    def decoding_diff(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows that entered and that left `decoding` since this was asked last."""
        told, now = self._told, np.zeros(len(self.state), np.bool_)
        now[self.decoding] = True
        self._told = now
        add, remove = np.flatnonzero(now & ~told), np.flatnonzero(told & ~now)
        return tuple(add.tolist()), tuple(remove.tolist())

    def book(self, number: int, drafts: int, prefill: list[Prefill]) -> tuple[int, Ints]:
        """Book step `number` as planned, with at most `drafts` drafts a decoding row.

        Returns:
            bound on the tokens of any row in it; [rows + 1] drafts booked a row, for `correct`.
        """
        decoding, longest = self.decoding, 0
        booked = np.zeros(len(self.state), np.int64)
        booked[decoding] = drafts
        self.lo[decoding] += 1
        self.hi[decoding] += 1 + drafts
        self.last_step[decoding] = number
        if len(decoding):
            longest = int(np.minimum(self.hi[decoding], self.limit[decoding]).max())
        for row, start, length, emits in prefill:
            self.last_step[row] = number
            longest = max(longest, start + length + emits)
            if emits:
                self.lo[row] += 1
                self.hi[row] += 1
                self.move(row, DECODE)
        return longest, booked

    def correct(self, rows: NDArray[np.int32], generated: NDArray[np.int32], booked: Ints) -> None:
        """Replace what was booked for `rows` in a step by the tokens they generated."""
        self.lo[rows] += generated - 1
        self.hi[rows] += generated - 1 - booked[rows]

    def masked(self, prefill: list[Prefill]) -> tuple[int, ...]:
        """Rows that generate in a step with these slices and need masks for it, ascending."""
        if not self.constrained.any():
            return ()
        emitting = [piece.row for piece in prefill if piece.emits]
        rows = np.concatenate((np.array(emitting, np.int64), self.decoding))
        return tuple(sorted(rows[self.constrained[rows]].tolist()))

    def candidates(self) -> list[Candidate]:
        """Rows that may be preempted while no step is uncollected."""
        found: list[Candidate] = []
        for row in np.flatnonzero((self.state == PREFILL) | (self.state == DECODE)).tolist():
            job = self.job(row)
            computed = job.planned if self.state[row] == PREFILL else int(self.lo[row]) - 1
            found.append(Candidate(row, job.urgency, computed, job.arrival))
        return found

    def check(self, collected: int, planned: int) -> list[str]:
        """Broken invariants, one sentence each.

        Args:
            collected: number of the last step whose result is known.
            planned: number of the last step that was planned.
        """
        jobs = [(row, job) for row, job in enumerate(self.jobs) if job is not None]
        problems = self.pool.check(page for _, job in jobs for page in job.pages)
        if [row for row, _ in jobs] != np.flatnonzero(self.state != FREE).tolist():
            problems.append("the rows with a request are not those that are not free")
        if sorted(self._free) != self.which(FREE)[1:].tolist():
            problems.append("the list of free rows differs from the states")
        for row, job in jobs:
            state, lo, hi = int(self.state[row]), int(self.lo[row]), int(self.hi[row])
            if job.row != row or len(job.pages) != self.pages[row]:
                problems.append(f"row {row}: columns and request disagree")
            if state == DRAINING:
                if self.last_step[row] <= collected:
                    problems.append(f"row {row} drains, and no uncollected step computes it")
                continue
            written = job.planned if state == PREFILL else min(hi, job.limit) - 1
            if len(job.pages) * self._page_tokens < written:
                problems.append(f"row {row} may write {written} tokens to {len(job.pages)} pages")
            known = len(job.request.prompt_token_ids) + len(job.outputs)
            if lo > hi or (collected == planned and not lo == hi == known):
                problems.append(f"row {row} has {known} tokens, its bounds are {lo} and {hi}")
        return problems
