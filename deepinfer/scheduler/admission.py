"""From a request to a job, and to what the device is told. Knows nothing of queues and steps."""

from __future__ import annotations

from deepinfer.cache import pages_for
from deepinfer.errors import RequestError
from deepinfer.request import Request
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.rows import Job
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


def admit_message(job: Job, limits: Limits, end_id: int) -> Admit:
    """What the device is told of a job that has its row.

    The decoder start is `max(prompt - decoder_keep, 0)`, counted from the prompt alone and so the
    same after a preemption (model-decisions.md H). A prompt whose log-probabilities are wanted runs
    every layer.
    """
    request = job.request
    length, keep = len(request.prompt_token_ids), limits.decoder_keep
    if request.params.prompt_logprobs is not None:
        keep = None
    end_id = end_id if end_id in request.stop_ids else -1
    return Admit(
        row=job.row,
        slot=job.row,
        ids=request.prompt_token_ids + tuple(job.outputs),
        prompt_len=length,
        cached=0,
        encoder_start=0,
        decoder_start=0 if keep is None else max(length - keep, 0),
        limit=job.limit,
        end_id=end_id,
        stop_ids=tuple(sorted(request.stop_ids - {end_id})),
        seed=request.seed,
        sample=request.sample,
        sampling=job.sampling,
    )
