"""From a request to a job, when it comes in, and what the device is told of it.

Knows nothing of how a step is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from deepinfer.cache import pages_for
from deepinfer.errors import RequestError
from deepinfer.request import Request
from deepinfer.scheduler.limits import LOOK_AHEAD, Limits, Policy
from deepinfer.scheduler.queue import WaitingQueue
from deepinfer.scheduler.reuse import Reuse, decoder_start
from deepinfer.scheduler.rows import Job, RowTable
from deepinfer.step import Admit, RowSampling


def row_sampling(request: Request) -> RowSampling:
    """What the device needs of the sampling values of a request.

    Raises:
        RequestError: it has bad words, and no token sequences came for them.
    """
    params = request.params
    if params.bad_words and not request.bad_words:
        raise RequestError(f"bad_words {params.bad_words!r} came without their token sequences")
    allowed = params.allowed_token_ids
    return RowSampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        min_tokens=params.min_tokens,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        processed_logprobs=params.logprobs_mode == "processed",
        logit_bias=tuple(sorted((params.logit_bias or {}).items())),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        bad_words=request.bad_words,
        forced_token_ids=tuple(params.forced_token_ids or ()),
    )


def new_job(request: Request, limits: Limits, arrival: int) -> Job:
    """A job for a request that fits.

    Args:
        request: ids are checked against the vocabulary already.
        limits: of the device.
        arrival: ascending in the order of arrival.

    Raises:
        RequestError: it can never be served here; the message says what it needs and what there is.
    """
    length = len(request.prompt_token_ids)
    if length == 0:
        raise RequestError("the prompt is empty; give at least one token")
    if length >= limits.max_model_len:
        raise RequestError(
            f"the prompt has {length} tokens, and prompt and output together may have "
            f"{limits.max_model_len}; shorten it to {limits.max_model_len - 1} tokens or less"
        )
    limit = min(length + request.params.max_tokens, limits.max_model_len)
    needed = pages_for(limit - 1, limits.page_tokens)  # the last token is never computed
    if needed > limits.num_pages:
        raise RequestError(
            f"prompt and output of {limit} tokens need {needed} pages of {limits.page_tokens} "
            f"tokens, {limits.num_pages} are available; shorten the prompt or lower max_tokens to "
            f"{limits.num_pages * limits.page_tokens + 1} tokens in all"
        )
    return Job(request, row_sampling(request), arrival, limit, length)


def joining(
    jobs: Mapping[str, Job],
    queue: WaitingQueue,
    rows: RowTable,
    reuse: Reuse,
    prefilling: list[Job],
    limits: Limits,
    policy: Policy,
    now: float,
) -> list[Job]:
    """Waiting requests, in order, for which there are rows and pages.

    A request comes in when the pages of all it knows are free, not promised to another prompt and
    not headroom. It gets them slice by slice, so decoding rows may use them meanwhile. Who finds
    too few is passed by, unless it waited too long or was preempted: pages were short then, and
    newcomers would make them shorter. So is who could share a page that is just being computed.

    Args:
        jobs: all requests by name.
        queue: those that wait.
        rows: those that run, and the pages.
        reuse: what they could share; `planned` of those returned is what they would start with.
        prefilling: rows whose prompt is not computed yet.
        limits: of the device.
        policy: its headroom.
        now: seconds.
    """
    page, pool = limits.page_tokens, rows.pool
    running = len(rows.decoding) + len(prefilling)
    seats = min(limits.max_num_seqs - running, rows.num_free)
    if seats <= 0:
        return []
    room = pool.free - sum(pages_for(job.target, page) - len(job.pages) for job in prefilling)
    if running:
        room -= limits.num_pages * policy.headroom_percent // 100
    found: list[Job] = []
    claimed: set[bytes] = set()
    for waiting in islice(queue.order(), LOOK_AHEAD):
        job = jobs[waiting.request_id]
        hit = reuse.find(job, now)
        key = reuse.next_key(job, hit)
        urgent = waiting.resumed or queue.aged(waiting)
        if key is not None and not urgent and (key in claimed or reuse.is_pending(key)):
            continue
        need = pages_for(job.target, page) - len(hit.pages) + pool.idle(hit.pages)
        if need <= room:
            job.planned = hit.start
            found.append(job)
            room -= need
            if key is not None:
                claimed.add(key)
            if len(found) == seats:
                break
        elif urgent:
            break
    return found


def admit_message(job: Job, limits: Limits, end_id: int) -> Admit:
    """What the device is told of a job that has its row."""
    request = job.request
    end_id = end_id if end_id in request.stop_ids else -1
    return Admit(
        row=job.row,
        slot=job.row,
        ids=request.prompt_token_ids + tuple(job.outputs),
        prompt_len=len(request.prompt_token_ids),
        cached=job.published * limits.page_tokens,
        encoder_start=job.cached,
        decoder_start=decoder_start(request, limits.decoder_keep),
        limit=job.limit,
        end_id=end_id,
        stop_ids=tuple(sorted(request.stop_ids - {end_id})),
        seed=request.seed,
        sample=request.sample,
        sampling=job.sampling,
        snapshot=job.windows,
    )
