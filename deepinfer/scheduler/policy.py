"""The three choices of a scheduler as free functions: shares of a step, order, victims.

Knows nothing of queues, rows or pages; sees only the named tuples it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import NamedTuple

from deepinfer.scheduler.limits import Policy

AGED_PRIORITY = -(1 << 62)
"""Priority of a request that was passed over too often, ahead of every priority of a caller."""


class Shares(NamedTuple):
    """Tokens of one step: drafts over all rows, and the prefill length of every prompt."""

    drafts: int
    prefill: tuple[int, ...]


class Waiting(NamedTuple):
    """A request in the queue.

    Attributes:
        request_id: its name.
        priority: smaller goes first.
        stamp: ascending in the order of queueing.
        resumed: it was preempted, and goes before those of its priority that never ran.
    """

    request_id: str
    priority: int
    stamp: int
    resumed: bool


class Candidate(NamedTuple):
    """A row that may be preempted.

    Attributes:
        row: its row.
        priority: smaller is kept longer; AGED_PRIORITY if it had waited too long.
        recompute: computed tokens that would have to be computed again.
        arrival: ascending in the order of arrival.
    """

    row: int
    priority: int
    recompute: int
    arrival: int


def share_budget(
    decoding: int, drafts: int, prefill: Sequence[int], budget: int, policy: Policy
) -> Shares:
    """Share one step's tokens between decoding, drafts and prompts.

    Decoding rows have their token first, which bounds the time between a user's tokens by a step.
    Then drafts take what they want up to `policy.draft_tokens`, but leave `policy.prefill_floor`
    to prompts. Prompts are served in the order given: first up to `policy.slice_tokens` each, then
    what is left, again in that order.

    Args:
        decoding: decoding rows, at most `budget`.
        drafts: drafts they could verify.
        prefill: tokens that each prompt still wants, >= 1, in order of precedence.
        budget: tokens this step may compute.
        policy: the numbers.

    Returns:
        drafts; one length a prompt, 0 for those that get nothing.
    """
    left = budget - decoding
    assert left >= 0, f"{decoding} decoding rows in a budget of {budget} tokens"
    floor = min(sum(prefill), policy.prefill_floor, left)
    drafts = min(drafts, policy.draft_tokens, left - floor)
    room = left - drafts
    if decoding:
        room = min(room, policy.prefill_beside_decode)
    lengths: list[int] = []
    for wanted in prefill:
        lengths.append(min(wanted, policy.slice_tokens, room))
        room -= lengths[-1]
    for place, wanted in enumerate(prefill):
        if room == 0:
            break
        more = min(wanted - lengths[place], room)
        lengths[place] += more
        room -= more
    return Shares(drafts, tuple(lengths))


def admit_key(waiting: Waiting, aged_before: int) -> tuple[int, int, bool, int]:
    """Sort key of the queue; the smallest is admitted first.

    Requests stamped before `aged_before` were passed over too often: they go first, the oldest
    first. Then by priority; within it the preempted, the last one first (the best of the victims),
    then the others in the order they came.
    """
    if waiting.stamp < aged_before:
        return (AGED_PRIORITY, 0, False, waiting.stamp)
    order = -waiting.stamp if waiting.resumed else waiting.stamp
    return (waiting.priority, 1, not waiting.resumed, order)


def admit_order(
    resumed: Iterable[Waiting], fresh: Iterable[Iterable[Waiting]], aged_before: int
) -> Iterator[Waiting]:
    """The queue in order of `admit_key`, lazily.

    Args:
        resumed: the preempted ones, in any order.
        fresh: for every priority those that never ran, in the order they came.
        aged_before: see `admit_key`.
    """

    def key(waiting: Waiting) -> tuple[int, int, bool, int]:
        return admit_key(waiting, aged_before)

    return merge(sorted(resumed, key=key), *fresh, key=key)


def choose_victim(candidates: Iterable[Candidate]) -> Candidate:
    """Whom to preempt: lowest priority, then fewest tokens to recompute, then youngest.

    Args:
        candidates: at least one.
    """
    return min(candidates, key=lambda c: (-c.priority, c.recompute, -c.arrival))
