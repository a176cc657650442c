"""What the scheduler tells: progress of single requests, and counters. Plain data."""

from __future__ import annotations

from typing import NamedTuple

from deepinfer.request import FinishReason, RequestMetrics
from deepinfer.step import FLAG_EMPTY, FLAG_END, FLAG_NAN, FLAG_STOP_ID

_NAN = "the logits are not finite; the weights or the device may be damaged, others go on"
_EMPTY = (
    "no token is allowed: allowed_token_ids, bad_words, min_tokens, structured output and the "
    "vocabulary exclude every one; relax them"
)


class Progress(NamedTuple):
    """News of one request; the last one carries `finish_reason`, exactly once a request.

    Attributes:
        request_id: its name.
        token_ids: newly generated ids, an end or stop id included.
        place: index into the arrays of the step's result (for log-probabilities), -1 = none.
        finish_reason: why it ended, None while it goes on.
        stop_id: the id that ended it, None for the end token and for other reasons.
        error: what went wrong and how to mend it, for the reason "error".
        num_cached_tokens: prompt tokens that were not computed again.
        metrics: times, with the last news.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    place: int = -1
    finish_reason: FinishReason | None = None
    stop_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None


class Snapshot(NamedTuple):
    """Counters. Up to `pages_cached` as of now, then totals since the start.

    Attributes:
        waiting: requests in the queue.
        prefilling: rows whose prompt is not computed yet.
        decoding: rows that generate.
        draining: rows that are computed no more and await the result of their last step.
        uncollected: steps planned and not applied.
        tokens: sure tokens of all rows.
        pages_used: pages owned by rows.
        pages_free: pages owned by nobody.
        pages_cached: pages that a later prompt can find, owned or not.
        steps: plans made.
        finished: requests that ended, for any reason.
        preemptions: rows given up for want of pages.
        generated: tokens generated.
        drafts_scheduled: drafts that steps had room for (their budgets).
        drafts_verified: drafts that were checked.
        drafts_accepted: drafts that were right.
        drafts_verified_at, drafts_accepted_at: the same by place in a block, the first draft first.
        mean_accepted_length: tokens that a row generates in a step in which it verifies drafts, the
            accepted ones and the one that is always generated; 0 before there was one.
        calibration_error: expected error of the calibrated confidences, 0..1, over recent drafts.
        prompt_tokens: tokens of the prompts that were admitted.
        prompt_tokens_cached: those of them that were not computed again.
    """

    waiting: int
    prefilling: int
    decoding: int
    draining: int
    uncollected: int
    tokens: int
    pages_used: int
    pages_free: int
    pages_cached: int
    steps: int
    finished: int
    preemptions: int
    generated: int
    drafts_scheduled: int
    drafts_verified: int
    drafts_accepted: int
    drafts_verified_at: tuple[int, ...]
    drafts_accepted_at: tuple[int, ...]
    mean_accepted_length: float
    calibration_error: float
    prompt_tokens: int
    prompt_tokens_cached: int


def outcome(flags: int, token_ids: tuple[int, ...]) -> tuple[FinishReason, int | None, str | None]:
    """Finish reason, stop id and error of a row that a step flagged.

    Args:
        flags: bits `step.FLAG_*`, not 0; an end wins over a limit that is reached with it.
        token_ids: what the row generated in that step; a stop id comes last.
    """
    if flags & FLAG_NAN:
        return "error", None, _NAN
    if flags & FLAG_EMPTY:
        return "error", None, _EMPTY
    if flags & FLAG_END:
        return "stop", None, None
    if flags & FLAG_STOP_ID:
        return "stop", token_ids[-1], None
    return "length", None, None
