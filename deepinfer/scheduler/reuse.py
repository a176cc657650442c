"""What a request takes over from earlier ones: pages by key, windows by snapshot or replay.

Owns the page pool's index and the snapshot places. Knows nothing of budgets and queues. Rules:
`serving.md` 2.3-2.5, `dspark-and-replay.md` 9-10.
"""

from __future__ import annotations

from typing import NamedTuple

from deepinfer.cache import PagePool, SnapshotPool, extend_chain, salted
from deepinfer.request import Request
from deepinfer.scheduler.limits import Caching, Limits
from deepinfer.scheduler.rows import Job
from deepinfer.step import Prefill, SnapshotSave


class Hit(NamedTuple):
    """What a request need not compute.

    Attributes:
        pages: shared pages, in the order of their tokens.
        start: first position that is computed; positions up to the end of the pages are computed
            only for their windows.
        snapshot: place of the windows before `start`, 0 = none are needed or they are computed.
    """

    pages: list[int]
    start: int
    snapshot: int = 0


NO_HIT = Hit([], 0)


def decoder_start(request: Request, keep: int | None) -> int:
    """First prompt position that runs the decoder layers: `max(prompt - keep, 0)`.

    It is counted from the prompt alone and so the same after a preemption (model-decisions.md H). A
    prompt whose log-probabilities are wanted runs every layer.
    """
    if keep is None or request.params.prompt_logprobs is not None:
        return 0
    return max(len(request.prompt_token_ids) - keep, 0)


class Reuse:
    """Finds and publishes what requests can share.

    Args:
        limits: of the device; without `limits.caching` nothing is ever shared.
        pool: all pages.
    """

    def __init__(self, limits: Limits, pool: PagePool):
        self.caching = limits.caching
        self._limits = limits
        self._page = limits.page_tokens
        self._pool = pool
        caching = limits.caching
        self.snapshots = SnapshotPool(
            0 if caching is None else caching.snapshots, 0 if caching is None else caching.ttl
        )
        self._pending: dict[bytes, int] = {}  # keys of pages being computed, and the row that does
        self._due: dict[int, tuple[int, int]] = {}  # row -> border and place of windows to save
        self.queries = self.hits = 0

    def begin(self, job: Job) -> None:
        """Name the full pages of a new request's prompt."""
        if self.caching is not None and job.request.params.prompt_logprobs is None:
            ids = job.request.prompt_token_ids
            job.first_key = salted(self.caching.first_key, job.request.cache_salt)
            extend_chain(job.keys, job.first_key, ids, self._page, len(ids))

    def find(self, job: Job, now: float) -> Hit:
        """The best hit for a request that waits; nothing is taken yet."""
        if not job.keys or self.caching is None:
            return NO_HIT
        usable = (job.target - 1) // self._page  # at least one token is always computed
        pages = self._pool.match(job.keys[:usable])
        if not pages:
            return NO_HIT
        start = decoder_start(job.request, self._limits.decoder_keep)
        replayed = self._replayed(job, pages, start, self.caching)
        return self._restored(job, pages, start, replayed, now)

    def _replayed(self, job: Job, pages: list[int], start: int, caching: Caching) -> Hit:
        """The hit whose windows are computed again."""
        end = len(pages) * self._page
        if caching.exact:
            # Rows whose windows must be right: those behind the hit, and the decoder's.
            first = end if self._limits.decoder_keep is None else min(end, start)
            return Hit(pages, max(first - caching.replay, 0) // self._page * self._page)
        if job.first_hit is not None:  # a bounded replay elsewhere would change the numbers
            pages = pages[: job.first_hit] if len(pages) >= job.first_hit else []
            end = len(pages) * self._page
        return Hit(pages, end - caching.replay) if end > caching.replay else NO_HIT

    def _restored(self, job: Job, pages: list[int], start: int, other: Hit, now: float) -> Hit:
        """The longest hit whose windows lie in a snapshot, if it saves more than `other`."""
        if self._limits.decoder_keep is None:
            return other  # windows of the decoder are not in snapshots
        for count in range(min(len(pages), start // self._page), 0, -1):
            border = count * self._page
            if border < other.start:
                break
            if place := self.snapshots.find(job.keys[count - 1], now):
                return Hit(pages[:count], border, place)
        return other

    def next_key(self, job: Job, hit: Hit) -> bytes | None:
        """Key of the page after the hit, None if it could not be shared."""
        following = len(hit.pages)
        if following >= min(len(job.keys), (job.target - 1) // self._page):
            return None
        return job.keys[following]

    def is_pending(self, key: bytes) -> bool:
        """Whether a request that runs is about to compute the page of this key."""
        return key in self._pending

    def enter(self, job: Job, hit: Hit) -> None:
        """Note that a request with its row computes what the hit leaves."""
        job.cached, job.published, job.windows = hit.start, len(hit.pages), hit.snapshot
        if job.first_hit is None:
            job.first_hit, job.reused = len(hit.pages), hit.start
            self.queries += len(job.request.prompt_token_ids)
            self.hits += hit.start
        for key in job.keys[job.published :]:
            self._pending.setdefault(key, job.row)

    def leave(self, job: Job) -> None:
        """Forget the plans of a request that computes no more."""
        for key in job.keys[job.published :]:
            if self._pending.get(key) == job.row:
                del self._pending[key]

    def computed(self, job: Job, tokens: int) -> None:
        """Publish the pages that are full once the step just planned is computed.

        Later steps run after it, so whoever is admitted from now on may read them.
        """
        full = min(tokens // self._page, len(job.keys))
        for place in range(job.published, full):
            self._pool.publish(job.pages[place], job.keys[place])
            if self._pending.get(job.keys[place]) == job.row:
                del self._pending[job.keys[place]]
        job.published = max(job.published, full)

    def distrust(self, job: Job) -> None:
        """Let nobody else find the pages of a request whose numbers are not finite."""
        self._pool.forget(job.pages)

    def generated(self, job: Job, now: float) -> None:
        """Publish the pages that became full with tokens now known, and save their windows."""
        if job.first_key is None:
            return
        prompt = job.request.prompt_token_ids
        known = len(prompt) + len(job.outputs) - 1  # the newest token is not computed yet
        if known // self._page <= job.published:
            return
        first = len(job.keys) * self._page
        ids = [*prompt[first:], *job.outputs[max(first - len(prompt), 0) :]]
        extend_chain(job.keys, job.first_key, ids, self._page, known)
        self.computed(job, known)
        if place := self.snapshots.store(job.keys[job.published - 1], now):
            if job.saved is not None:
                self.snapshots.drop(job.saved)
            job.saved = job.keys[job.published - 1]
            self._due[job.row] = (job.published * self._page, place)

    def saves(
        self, prefill: list[Prefill], jobs: list[Job | None], now: float
    ) -> list[SnapshotSave]:
        """Windows that the device keeps in the step being planned.

        Those of rows that have just ended are still there: the step saves before it releases.
        """
        saves = [SnapshotSave(row, end, place, False) for row, (end, place) in self._due.items()]
        self._due.clear()
        if not self.snapshots.places or self._limits.decoder_keep is None:
            return saves
        for piece in prefill:
            job = jobs[piece.row]
            assert job is not None
            border = decoder_start(job.request, self._limits.decoder_keep) // self._page
            end = border * self._page
            inside = piece.start < end <= piece.start + piece.length
            if job.keys and inside and (place := self.snapshots.store(job.keys[border - 1], now)):
                saves.append(SnapshotSave(piece.row, end, place, True))
        return saves

    def reset(self) -> None:
        """Forget all that could be shared; what runs goes on with what it has."""
        self._pool.reset()
        self.snapshots.reset()
        self._due.clear()
        self._pending.clear()
