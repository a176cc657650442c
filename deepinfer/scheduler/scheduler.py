"""Decides what each step computes, and books what came of it.

Owns requests from `add` to their last `Progress`. Never sees a tensor, a clock or a text; time is
an argument, and equal calls give equal plans.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer.cache import pages_for
from deepinfer.errors import RequestError
from deepinfer.request import FinishReason, Request
from deepinfer.scheduler.admission import admit_message, joining, new_job
from deepinfer.scheduler.limits import Limits, Policy, drafting_policy
from deepinfer.scheduler.policy import choose_victim, share_budget
from deepinfer.scheduler.queue import WaitingQueue
from deepinfer.scheduler.report import Progress, Snapshot, outcome
from deepinfer.scheduler.reuse import Hit, Reuse
from deepinfer.scheduler.rows import CLOSED, DECODE, DRAINING, FREE, PREFILL, Job, RowTable
from deepinfer.scheduler.speculation import Size, Speculation
from deepinfer.step import FLAG_NAN, Admit, DraftCap, PageAppend, Prefill, StepPlan, StepResult


class _Flight(NamedTuple):
    """A step that is planned and not applied: its number, rows in its result, drafts booked, and
    what it computes."""

    number: int
    rows: int
    booked: NDArray[np.int64]
    size: Size


class _Work(NamedTuple):
    """What a step computes: drafts over all rows, requests that enter, slices, new pages."""

    drafts: int
    admit: list[Admit]
    prefill: list[Prefill]
    pages: list[PageAppend]


class Scheduler:
    """Plans steps for the requests it is given.

    The loop around it: `plan` and start step n + 1, then `apply` the result of step n; or, without
    overlap, `plan`, compute and `apply` one step after another. When `plan` returns None and a step
    is uncollected, apply that one next; when none is, there is nothing to do.

    Args:
        limits: what the device was built for.
        policy: how a step is shared.
        end_id: the model's end token, -1 = none.

    Attributes:
        speculation: what was learned of steps and drafts.
    """

    def __init__(self, limits: Limits, policy: Policy, *, end_id: int = -1):
        self.limits = limits
        self.policy = drafting_policy(policy, limits.drafting)
        self.speculation = Speculation(limits)
        self._end_id = end_id
        self._rows = RowTable(limits)
        self._reuse = Reuse(limits, self._rows.pool)
        self._queue = WaitingQueue()
        self._jobs: dict[str, Job] = {}
        self._flights: deque[_Flight] = deque()
        self._reports: list[Progress] = []
        self._now = 0.0
        self._collected = -1  # number of the last applied step
        self._steps = self._arrivals = self._finished = self._preemptions = 0
        self._generated = 0

    def add(self, request: Request) -> None:
        """Queue a request.

        Args:
            request: `params.n` is 1; ids are checked against the vocabulary already.

        Raises:
            RequestError: it can never be served here, or its name is taken.
        """
        name = request.request_id
        if name in self._jobs:
            raise RequestError(f"request {name!r} is being served already; choose another name")
        job = self._jobs[name] = new_job(request, self.limits, self._arrivals)
        self._reuse.begin(job)
        self._arrivals += 1
        self._queue.push(name, request.priority, resumed=False)

    def abort(self, request_id: str) -> bool:
        """End a request with the reason "abort"; False if there is none of that name."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: str, reason: FinishReason, error: str | None = None) -> bool:
        """End a request from outside, such as for a stop string; tokens on their way are dropped.

        Its last `Progress` comes with the next `apply` or `take_reports`.

        Args:
            request_id: its name.
            reason: why it ends.
            error: what went wrong, for the reason "error".

        Returns:
            False if there is no such request (any more).
        """
        job = self._jobs.get(request_id)
        if job is None:
            return False
        self._reports.append(self._end(job, reason)._replace(error=error))
        return True

    def take_reports(self) -> list[Progress]:
        """News that no step brought; `apply` delivers them too, whichever comes first."""
        reports, self._reports = self._reports, []
        return reports

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, is uncollected or has to be reported."""
        return not (self._jobs or self._flights or self._reports)

    def plan(self, now: float) -> StepPlan | None:
        """The next step.

        Args:
            now: seconds, on the clock of `Request.arrival`.

        Returns:
            None: there is nothing to do, or nothing before the uncollected step is applied. That
            is so when all rows await their last result, and when pages are short: rows are
            preempted only when all lengths are known, so that no result is lost.
        """
        assert len(self._flights) < 2, "two steps are uncollected; apply the older one first"
        self._now = now
        self._rows.update_decoding()
        admitting = True
        while True:
            reserved = self._page_decoding()
            if reserved is not None:
                work = self._work(*reserved, admitting)
                if work.prefill or len(self._rows.decoding):
                    return self._launch(work)
            # Nothing can be computed. Either pages are short, or there is no row.
            if self._flights or (reserved is not None and not len(self._rows.which(PREFILL))):
                return None
            self._preempt()
            admitting = False  # the pages are for those that run

    def _page_decoding(self) -> tuple[int, list[PageAppend]] | None:
        """Drafts over all decoding rows, and the pages to write them and the sure tokens to.

        Drafts are given up before a row is. None: pages are short even without drafts.
        """
        limits, count = self.limits, len(self._rows.decoding)
        drafts = min(
            count * limits.max_draft,
            self.policy.draft_tokens,
            limits.max_num_batched_tokens - count,
        )
        pages = self._rows.page_decoding(min(drafts, limits.max_draft))
        if pages is None and drafts:
            drafts, pages = 0, self._rows.page_decoding(0)
        return None if pages is None else (drafts, pages)

    def _work(self, drafts: int, pages: list[PageAppend], admitting: bool) -> _Work:
        """Share the step, admit requests, cut slices and give them pages."""
        limits, rows = self.limits, self._rows
        running = sorted(
            (rows.job(row) for row in rows.which(PREFILL).tolist()),
            key=lambda job: (job.urgency, job.arrival),
        )
        jobs = running + (self._joining(running) if admitting and len(self._queue) else [])
        wanted = [job.target - job.planned for job in jobs]
        drafts = self._budget(drafts, sum(wanted))
        budget = limits.max_num_batched_tokens
        shares = share_budget(len(rows.decoding), drafts, wanted, budget, self.policy)
        work = _Work(shares.drafts, [], [], pages)
        latest = -1
        for job, share in zip(jobs, shares.prefill, strict=True):
            hit = None if job.row else self._reuse.find(job, self._now)
            length = min(share, self._room(job, hit))
            if length <= 0:
                continue
            if hit is not None:
                latest = max(latest, self._admit(job, hit, work))
            need = pages_for(job.planned + length, limits.page_tokens) - len(job.pages)
            if need > 0:
                work.pages.extend(rows.append_pages(job.row, need))
            emits = job.planned + length == job.target
            work.prefill.append(Prefill(job.row, job.planned, length, emits))
            job.planned += length
        if latest >= 0:
            self._queue.admitted(latest)
        return work

    def _budget(self, most: int, wanted: int) -> int:
        """Drafts to verify besides prompts that want so many tokens."""
        rows = self._rows
        if not (most and self.limits.drafting.adaptive):
            return most
        left = self.limits.max_num_batched_tokens - len(rows.decoding) - most
        prefill = min(wanted, left, self.policy.prefill_beside_decode)
        decoding = rows.decoding
        return self.speculation.budget(
            decoding, lambda: rows.limit[decoding] - rows.lo[decoding] - 1, most, prefill
        )

    def _room(self, job: Job, hit: Hit | None) -> int:
        """Tokens that the job could compute in the pages it has and those that are free."""
        start, pages, free = job.planned, len(job.pages), self._rows.pool.free
        if hit is not None:
            start, pages = hit.start, len(hit.pages)
            free -= self._rows.pool.idle(hit.pages)
        return min((pages + free) * self.limits.page_tokens, job.target) - start

    def _joining(self, prefilling: list[Job]) -> list[Job]:
        parts = (self._queue, self._rows, self._reuse)
        return joining(self._jobs, *parts, prefilling, self.limits, self.policy, self._now)

    def _admit(self, job: Job, hit: Hit, work: _Work) -> int:
        """Give a waiting request a row; returns its stamp in the queue."""
        waiting = self._queue.remove(job.request.request_id)
        job.aged = job.aged or self._queue.aged(waiting)
        work.pages.extend(self._rows.enter(job, hit.pages, hit.start))
        self._reuse.enter(job, hit)
        work.admit.append(admit_message(job, self.limits, self._end_id))
        return waiting.stamp

    def _launch(self, work: _Work) -> StepPlan:
        """Book a step as planned, and say so to the device."""
        rows, number = self._rows, self._steps
        add, remove = rows.decoding_diff()
        decoding, most = len(rows.decoding), self.limits.max_draft
        longest, booked = rows.book(number, min(work.drafts, most), work.prefill)
        emitting = sum(piece.emits for piece in work.prefill)
        tokens = sum(piece.length for piece in work.prefill)
        graph_rows = 0 if work.prefill else self.limits.graph_rows(decoding)
        size = Size(decoding, tokens, work.drafts, graph_rows)
        self._flights.append(_Flight(number, decoding + emitting, booked, size))
        self._steps += 1
        released, rows.released = rows.released, []
        saves = self._reuse.saves(work.prefill, rows.jobs, self._now)
        for piece in work.prefill:
            self._reuse.computed(rows.job(piece.row), piece.start + piece.length)
        return StepPlan(
            number=number,
            admit=tuple(work.admit),
            release=tuple(released),
            pages=tuple(work.pages),
            prefill=tuple(work.prefill),
            decode_add=add,
            decode_remove=remove,
            draft_budget=work.drafts,
            draft_cap=tuple(DraftCap(row, most) for row in add) if most else (),
            draft_temperature=self.speculation.planned(work.drafts),
            graph_rows=graph_rows,
            max_len_hi=longest,
            snapshots=tuple(saves),
            masked=rows.masked(work.prefill),
        )

    def _preempt(self) -> None:
        """Give up one row for its pages; its request starts again from all tokens it knows."""
        assert not self._flights, "lengths are not known while a step is uncollected"
        candidates = self._rows.candidates()
        assert len(candidates) > 1, "a row that is alone fits: `new_job` made sure"
        victim = choose_victim(candidates).row
        self._reuse.leave(self._rows.job(victim))
        job = self._rows.free(victim)
        job.count_drafts(*self.speculation.take(victim))
        job.preemptions += 1
        job.target = len(job.request.prompt_token_ids) + len(job.outputs)
        self._queue.push(job.request.request_id, job.request.priority, resumed=True)
        self._preemptions += 1
        self._rows.update_decoding()

    def apply(self, result: StepResult, now: float) -> list[Progress]:
        """Book the result of the oldest uncollected step.

        Args:
            result: of that step.
            now: seconds, on the clock of `plan`.

        Returns:
            news of requests: those of `take_reports`, then the step's in the order of the result.
        """
        flight = self._flights.popleft()
        assert (result.number, len(result.row)) == (flight.number, flight.rows), (
            f"step {flight.number} of {flight.rows} rows got the result of step {result.number} "
            f"of {len(result.row)} rows"
        )
        self._now, self._collected = now, flight.number
        rows, generated = self._rows, result.generated
        live = rows.state[result.row] != DRAINING
        rows.correct(result.row, generated, flight.booked)
        self._generated += int(generated[live].sum())
        self.speculation.applied(result, live, flight.size)
        news = self.take_reports()
        news += self._deliver(result, generated.tolist(), live.tolist())
        for row in rows.which(DRAINING).tolist():
            if rows.last_step[row] <= flight.number:
                rows.free(row)
        return news

    def _deliver(self, result: StepResult, counts: list[int], live: list[bool]) -> list[Progress]:
        """Hand tokens to their requests and end those that are flagged."""
        news: list[Progress] = []
        rows: list[int] = result.row.tolist()
        tokens: list[list[int]] = result.tokens.tolist()
        columns = zip(rows, tokens, counts, result.flags.tolist(), live, strict=True)
        jobs = self._rows.jobs
        for place, (row, ids, count, flag, wanted) in enumerate(columns):
            if not wanted:
                continue
            job = jobs[row]
            assert job is not None, f"row {row} is free and has a result"
            new = tuple(ids[:count])
            job.outputs += new
            if job.first_token is None and new:
                job.first_token = self._now
            self._reuse.generated(job, self._now)
            if flag:
                reason, stop_id, error = outcome(flag, new)
                if flag & FLAG_NAN:
                    self._reuse.distrust(job)
                last = self._end(job, reason)
                news.append(last._replace(token_ids=new, stop_id=stop_id, error=error, place=place))
            elif new:  # none if its mask was late
                news.append(Progress(job.request.request_id, new, place))
        return news

    def _end(self, job: Job, reason: FinishReason) -> Progress:
        """Forget a request; its row drains if an uncollected step computes it."""
        request, row = job.request, job.row
        self._reuse.leave(job)
        del self._jobs[request.request_id]
        self._finished += 1
        job.count_drafts(*self.speculation.take(row))
        if not row:
            self._queue.remove(request.request_id)
        elif self._rows.last_step[row] <= self._collected:
            self._rows.free(row)
        else:
            self._rows.move(row, DRAINING)
        last = Progress(request.request_id, finish_reason=reason, num_cached_tokens=job.reused)
        return last._replace(metrics=job.metrics(self._now))

    def reset_prefix_cache(self) -> None:
        """Forget what could be shared; requests that run keep what they have."""
        self._reuse.reset()

    def request_at(self, row: int) -> str | None:
        """Whose row the result applied last spoke of, also if that request has just ended."""
        return self._rows.holders[row]

    def snapshot(self) -> Snapshot:
        """Counters as of now."""
        rows = self._rows
        return Snapshot(
            waiting=len(self._queue),
            prefilling=len(rows.which(PREFILL)),
            decoding=len(rows.which(DECODE)),
            draining=len(rows.which(CLOSED)) + len(rows.which(DRAINING)),
            uncollected=len(self._flights),
            tokens=int(rows.lo[rows.state != FREE].sum()),
            pages_used=rows.pool.used,
            pages_free=rows.pool.free,
            pages_cached=rows.pool.cached,
            steps=self._steps,
            finished=self._finished,
            preemptions=self._preemptions,
            generated=self._generated,
            **self.speculation.counts()._asdict(),
            prompt_tokens=self._reuse.queries,
            prompt_tokens_cached=self._reuse.hits,
        )

    def check(self) -> list[str]:
        """Broken invariants, one sentence each; costs a look at every row and page."""
        problems = self._rows.check(self._collected, self._steps - 1)
        held = [job for job in self._rows.jobs if job is not None]
        running = [job for job in held if self._rows.state[job.row] != DRAINING]
        if any(self._jobs.get(job.request.request_id) is not job for job in running):
            problems.append("a row holds a request that ended")
        if len(self._jobs) != len(running) + len(self._queue):
            problems.append(
                f"{len(self._jobs)} requests, of which {len(running)} run and "
                f"{len(self._queue)} wait"
            )
        return problems
