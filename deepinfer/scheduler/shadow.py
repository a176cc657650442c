"""A device without a model: runs plans in NumPy, and raises where a real one would read rubbish.

Its next token is a hash of all tokens before it. The running hash of position p lies in the page of
p and is computed from that of p - 1, so a wrong row, page, position or roll-back changes tokens.
It obeys masks, end and stop ids, limits and `min_tokens`; of the other sampling values it knows
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer.scheduler.calibration import probability
from deepinfer.scheduler.hashes import VOCABULARY, WORD, Mask, choose, fold, mask_of, mix
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.speculation import share_budget_out
from deepinfer.step import (
    FLAG_EMPTY,
    FLAG_END,
    FLAG_LIMIT,
    FLAG_NAN,
    FLAG_STOP_ID,
    Admit,
    SnapshotSave,
    StepMasks,
    StepPlan,
    StepResult,
)

_POISON = 0xDEAD_BEEF_DEAD_BEEF


class DrafterSpec(NamedTuple):
    """The fake drafter: a draft is right with probability `right_percent` / 100.

    A step leaves 0 to `Limits.max_draft` drafts if `ragged`, else always that many; with
    `confident` their confidences are higher for right ones, and too high. All are functions of
    `seed`, the request's seed and the position.
    """

    right_percent: int = 70
    ragged: bool = False
    confident: bool = False
    seed: int = 0


@dataclass(slots=True)
class _Row:
    """State of a row, as a device would keep it; `computed` counts tokens from the first on."""

    admit: Admit
    tokens: list[int]
    stops: frozenset[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list[int])
    drafts: list[int] = field(default_factory=list[int])
    confidence: list[float] = field(default_factory=list[float])
    cap: int = 0
    ended: bool = False


class _Outcome(NamedTuple):
    row: int
    verified: int
    accepted: int
    tokens: Sequence[int]
    flags: int
    confidence: Sequence[float] = ()
    drafts: Sequence[int] = ()


class _Open(NamedTuple):
    """A step whose tokens are not chosen yet: generating rows and the drafts each verifies."""

    plan: StepPlan
    rows: list[tuple[int, list[int]]]


class ShadowDevice:
    """Rows, pages and a fake drafter behind the calls of a runner.

    Every broken promise of a plan raises AssertionError: a page that two rows write, a shared page
    that holds something else, a position without its page, a gap between slices, windows that are
    missing, decoding before the prompt is computed, an unknown row, a budget that is exceeded, more
    than one uncollected step when the next one starts.

    Args:
        limits: of the scheduler.
        drafter: how drafts come about.
        nan_at: (seed, position) of tokens whose logits are not finite.
        vocabulary: size of it.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        drafter: DrafterSpec | None = None,
        nan_at: Collection[tuple[int, int]] = (),
        vocabulary: int = VOCABULARY,
    ):
        self.limits = limits
        self.drafter = drafter or DrafterSpec()
        self._nan_at = nan_at
        self._vocabulary = vocabulary
        self._pages = np.full((limits.num_pages + 1, limits.page_tokens), _POISON, np.uint64)
        self._owners = [0] * (limits.num_pages + 1)
        self._snapshots: dict[int, int] = {}  # place -> running hash before its border
        self._rows: dict[int, _Row] = {}
        self._decoding: set[int] = set()
        self._temperature = np.ones(limits.max_draft)
        self._results: deque[StepResult] = deque()
        self._open: _Open | None = None
        self._steps = 0

    def forward(self, plan: StepPlan) -> None:
        """Take over the changes of a step and compute what is known of its prompts."""
        assert self._open is None, "the step before has no tokens yet"
        assert plan.number == self._steps, f"step {plan.number} comes after {self._steps - 1}"
        assert len(self._results) < 2, "more than one step is uncollected"
        self._steps += 1
        self._keep([save for save in plan.snapshots if not save.fresh])
        self._update(plan)
        rows: list[tuple[int, list[int]]] = []
        for number, start, length, emits in plan.prefill:
            row = self._rows[number]
            assert number not in self._decoding, f"row {number} prefills and decodes in one step"
            assert start == row.computed, f"row {number} is computed to {row.computed}, not {start}"
            assert 0 < length <= len(row.tokens) - start, f"row {number}: slice of {length} tokens"
            assert emits == (start + length == len(row.tokens)), f"row {number}: {emits=}"
            assert start + length <= plan.max_len_hi, f"row {number}: {plan.max_len_hi=}"
            self._compute(row, start, row.tokens[start : start + length])
            row.computed = start + length
            if emits:
                rows.append((number, []))
        self._keep([save for save in plan.snapshots if save.fresh])
        for number, count in self._shares(plan.draft_budget):
            rows.append((number, self._rows[number].drafts[:count]))
        self._open = _Open(plan, rows)

    def sample(self, number: int, masks: StepMasks | None = None) -> None:
        """Choose the tokens of step `number`."""
        assert self._open is not None
        plan, rows = self._open
        self._open = None
        assert plan.number == number
        assert masks is not None or not plan.masked, "masks are missing"
        assert masks is None or masks.covers(plan.masked), "masks of other rows"
        outcomes = [
            self._generate(row, drafts, plan.max_len_hi, mask_of(masks, row))
            for row, drafts in rows
        ]
        computed = len(self._decoding) + sum(piece.length for piece in plan.prefill)
        limit = self.limits.max_num_batched_tokens
        assert computed + plan.draft_budget <= limit, f"step {number} exceeds {limit} tokens"
        # Time is a staircase, so that planners have something to learn.
        seconds = 1e-3 * (2 + (computed + plan.draft_budget) // 4)
        self._results.append(self._result(number, outcomes, seconds))

    def draft(self, number: int) -> None:
        """Make the drafts of the step after `number`."""
        assert self._results[-1].number == number

    def collect(self, number: int) -> StepResult:
        """The result of step `number`, the oldest that is uncollected."""
        assert self._results[0].number == number, f"step {self._results[0].number} comes first"
        return self._results.popleft()

    def _shares(self, budget: int) -> Iterable[tuple[int, int]]:
        """Decoding rows and the drafts that each verifies, as `runner.rows.share_drafts` says."""
        numbers = sorted(self._decoding)
        wanted = np.zeros(len(numbers), np.int64)
        logits = np.zeros((len(numbers), self.limits.max_draft))
        for place, number in enumerate(numbers):
            row = self._rows[number]
            room = row.admit.limit - len(row.tokens) - 1
            wanted[place] = max(min(row.cap, room, len(row.drafts)), 0) * (not row.ended)
            logits[place, : len(row.confidence)] = row.confidence
        right = probability(logits, self._temperature)
        right[logits == 0] = 1
        shares = share_budget_out(right.cumprod(axis=1), wanted, budget)
        return zip(numbers, shares.tolist(), strict=True)

    def _update(self, plan: StepPlan) -> None:
        """Change the set of rows, in the order of the contract."""
        for number in plan.release:
            for page in self._rows.pop(number).pages:
                self._owners[page] -= 1
                if self.limits.caching is None:
                    self._pages[page] = _POISON
        for admit in plan.admit:
            assert 1 <= admit.row <= self.limits.num_slots, f"row {admit.row}"
            assert 1 <= admit.slot <= self.limits.num_slots, f"slot {admit.slot}"
            assert admit.row not in self._rows, f"row {admit.row} is taken"
            assert all(admit.slot != row.admit.slot for row in self._rows.values()), admit.slot
            stops = frozenset(admit.stop_ids) | {admit.end_id}
            assert admit.encoder_start <= admit.cached < len(admit.ids), f"{admit.cached=}"
            self._rows[admit.row] = _Row(admit, list(admit.ids), stops, admit.encoder_start)
        for number, place, page in plan.pages:
            assert 1 <= page <= self.limits.num_pages, f"page {page}"
            row = self._rows[number]
            assert place == len(row.pages), f"row {number}: entry {place}"
            if place * self.limits.page_tokens >= row.admit.cached:
                assert not self._owners[page], f"page {page} is written by row {number} and another"
                self._pages[page] = _POISON
            self._owners[page] += 1
            row.pages.append(page)
        for admit in plan.admit:
            self._check_hit(self._rows[admit.row])
        assert self._decoding.issuperset(plan.decode_remove), plan.decode_remove
        self._decoding.difference_update(plan.decode_remove)
        assert self._decoding.isdisjoint(plan.decode_add), plan.decode_add
        self._decoding.update(plan.decode_add)
        for number in self._decoding:
            row = self._rows[number]
            done = row.computed == len(row.tokens) - 1
            assert done or row.ended, f"row {number} decodes before its prompt is computed"
        for number, cap in plan.draft_cap:
            self._rows[number].cap = cap
        if plan.draft_temperature:
            assert len(plan.draft_temperature) == self.limits.max_draft
            self._temperature = np.array(plan.draft_temperature)

    def _check_hit(self, row: _Row) -> None:
        """A row starts where its windows are right: at 0, at a snapshot, or behind a replay."""
        admit, caching = row.admit, self.limits.caching
        start, end = admit.encoder_start, admit.cached
        if not end:
            return
        assert caching is not None, "a hit without caching"
        assert end % self.limits.page_tokens == 0, f"{end=} is inside a page"
        self._read(row, end - 1)
        first = end
        if self.limits.decoder_keep is not None:
            assert start <= admit.decoder_start or not start, "the decoder misses its first rows"
            first = min(end, admit.decoder_start) if caching.exact else end
        if admit.snapshot:
            assert start == end
            assert self._snapshots[admit.snapshot] == self._read(row, end - 1), "another prompt's"
        elif start or not caching.exact:
            assert start <= first - caching.replay, f"row {admit.row} replays too few positions"

    def _keep(self, saves: Iterable[SnapshotSave]) -> None:
        for number, end, place, _ in saves:
            row, caching = self._rows[number], self.limits.caching
            assert caching is not None
            assert 1 <= place <= caching.snapshots, f"place {place}"
            assert end <= row.computed or row.ended, f"row {number} is computed to {row.computed}"
            self._snapshots[place] = self._read(row, end - 1)

    def _generate(self, number: int, drafts: list[int], longest: int, masks: Mask) -> _Outcome:
        """Compute the newest token of a row and `drafts`; keep what is right and one more."""
        row = self._rows[number]
        if row.ended or masks.legal < 0:
            row.drafts, row.confidence = ([], []) if row.ended else self._new_drafts(row)
            row.computed = len(row.tokens) - 1
            return _Outcome(number, 0, 0, (), 0, row.confidence, row.drafts)
        start, seed = len(row.tokens) - 1, row.admit.seed
        states = self._compute(row, start, [row.tokens[start], *drafts])
        drafts = drafts[: masks.legal]
        new: list[int] = []
        flags = 0
        for place, state in enumerate(states[: len(drafts) + 1]):
            position = start + 1 + place
            if (seed, position) in self._nan_at:
                new, flags = [], FLAG_NAN
                break
            token = self._draw(row, position, state, masks.at(place))
            if token < 0:
                flags = FLAG_EMPTY
                break
            new.append(token)
            flags = self._flags(row, position, token)
            if flags or place == len(drafts) or drafts[place] != token:
                break
        row.tokens += new
        row.computed = len(row.tokens) - 1
        row.ended = flags != 0
        accepted = sum(a == b for a, b in zip(new, drafts, strict=False))
        row.drafts, row.confidence = ([], []) if row.ended else self._new_drafts(row)
        assert len(row.tokens) <= longest, f"row {number} has {len(row.tokens)} > {longest} tokens"
        return _Outcome(number, len(drafts), accepted, new, flags, row.confidence, row.drafts)

    def _draw(
        self, row: _Row, position: int, state: int, mask: NDArray[np.int32] | None = None
    ) -> int:
        early = position - row.admit.prompt_len < row.admit.sampling.min_tokens
        barred = row.stops if early else ()
        return choose(state, row.admit.seed, barred, self._vocabulary, mask)

    def _flags(self, row: _Row, position: int, token: int) -> int:
        flags = FLAG_LIMIT if position + 1 == row.admit.limit else 0
        if token in row.stops:
            flags |= FLAG_END if token == row.admit.end_id else FLAG_STOP_ID
        return flags

    def _compute(self, row: _Row, start: int, tokens: Iterable[int]) -> list[int]:
        """Write the running hashes of `tokens` at positions from `start` into the row's pages."""
        size = self.limits.page_tokens
        state = 0 if start == 0 else self._read(row, start - 1)
        states: list[int] = []
        for position, token in enumerate(tokens, start):
            state = fold(state, token)
            place = position // size
            assert place < len(row.pages), f"row {row.admit.row} owns no page of {position}"
            if position < row.admit.cached:
                assert state == self._read(row, position), (
                    f"row {row.admit.row} shares a wrong page"
                )
            self._pages[row.pages[place], position % size] = state
            states.append(state)
        return states

    def _read(self, row: _Row, position: int) -> int:
        size = self.limits.page_tokens
        state = int(self._pages[row.pages[position // size], position % size])
        assert state != _POISON, f"row {row.admit.row} reads position {position}, never written"
        return state

    def _new_drafts(self, row: _Row) -> tuple[list[int], list[float]]:
        """Guesses for the next tokens, each right or wrong by chance, and their confidences."""
        length, most = len(row.tokens), self.limits.max_draft
        if most == 0:
            return [], []
        chance = mix(self.drafter.seed ^ mix(row.admit.seed & WORD) ^ mix(length))
        count = chance % (most + 1) if self.drafter.ragged else most
        state = fold(self._read(row, length - 2) if length > 1 else 0, row.tokens[-1])
        drafts: list[int] = []
        logits: list[float] = []
        for position in range(length, length + count):
            chance = mix(chance)
            right = chance % 100 < self.drafter.right_percent
            token = self._draw(row, position, state)
            drafts.append(token if right else (token + 1) % self._vocabulary)
            state = fold(state, drafts[-1])
            luck = (chance >> 40) / (1 << 24)  # in [0, 1), as good as independent of `right`
            logits.append(3 * (right + luck) if self.drafter.confident else 0.0)
        return drafts, logits

    def _result(self, number: int, outcomes: list[_Outcome], seconds: float) -> StepResult:
        cap = self.limits.max_draft
        tokens = np.full((len(outcomes), 1 + cap), -1, np.int32)
        confidence = np.zeros((len(outcomes), cap), np.float32)
        drafts = np.full((len(outcomes), cap), -1, np.int32)
        for place, outcome in enumerate(outcomes):
            drafts[place, : len(outcome.drafts)] = outcome.drafts
            tokens[place, : len(outcome.tokens)] = outcome.tokens
            confidence[place, : len(outcome.confidence)] = outcome.confidence

        def column(values: Iterable[int]) -> NDArray[np.int32]:
            return np.fromiter(values, np.int32, len(outcomes))

        return StepResult(
            number=number,
            row=column(o.row for o in outcomes),
            verified=column(o.verified for o in outcomes),
            accepted=column(o.accepted for o in outcomes),
            tokens=tokens,
            flags=column(o.flags for o in outcomes),
            confidence=confidence,
            drafts=drafts,
            seconds=seconds,
        )
