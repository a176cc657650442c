"""Runs a recorded request again, alone, and says whether a difference is numerics or corruption.

First freely; then, if anything differs, with the recorded tokens forced, so that every position is
judged behind the same tokens. A difference is numerics if changes of the log-probabilities no
larger than a bound explain it, and if it is there from the start: who adds in another order is off
by a little everywhere. Knows nothing of how the record came about.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from deepinfer.engine.core import EngineCore
from deepinfer.engine.record import Recorded
from deepinfer.engine.recorded_masks import RecordedMatcher, unpacked
from deepinfer.errors import ConfigError
from deepinfer.ops.noise import NoiseKey, Purpose, gumbel_noise
from deepinfer.ops.sample.law import truncate
from deepinfer.request import Request, SamplingParams

Doubles = NDArray[np.float64]
Kind = Literal["equal", "numerics", "corruption"]

BOUND = 2.0
"""Nats. Other order classes and devices differ by less even with random weights, whose quantised
activations flip easily: 1.2 at most, 0.07 in the middle, on the embedded model."""
_SURE = 4  # log-probabilities equal bit by bit from the first on show the same order of sums,
_SUDDEN = 1e-3  # so that so many nats at once cannot come from another one


class Place(NamedTuple):
    """What is known of one recorded token; all in nats, None = not known.

    Attributes:
        position: among the generated tokens.
        token: as recorded.
        here: what this engine chooses freely, while all before it is equal; else None.
        drift: how far the recorded log-probability is from that of this engine.
        needed: by how much log-probabilities would have to change to make the recorded choice;
            inf = no change would (the request's own rules exclude the token).
    """

    position: int
    token: int
    here: int | None
    drift: float | None
    needed: float | None


@dataclass(frozen=True)
class Verdict:
    """How a record and its re-run compare.

    Attributes:
        kind: "equal": tokens, reason and log-probabilities bit by bit; "numerics": every difference
            is within the bound; "corruption": from `place` on something is not.
        place: the first difference, or the first that is beyond the bound; None if equal.
        drift, needed: the largest of all places that are within the bound.
        reason: in words.
    """

    kind: Kind
    place: Place | None
    drift: float
    needed: float
    reason: str


class _Run(NamedTuple):
    """Tokens, their log-probabilities, and the whole law of each by id if asked for."""

    tokens: list[int]
    chosen: list[float]
    laws: list[Doubles]
    reason: str | None


_names = itertools.count()


def _run(core: EngineCore, recorded: Recorded, params: SamplingParams) -> _Run:
    """Serve one request alone, with the grammar masks of the record."""
    name, answer = f"re-run {next(_names)}", recorded.answer
    words = next((len(unpacked(mask)) for mask in answer.masks if mask is not None), 0)
    request = replace(
        recorded.request,
        request_id=name,
        params=params,
        arrival=core.clock(),
        constrained=words > 0,
    )
    matcher = RecordedMatcher(answer.token_ids, answer.masks, words) if words else None
    core.add(request, matcher, words)
    tokens: list[int] = []
    chosen: list[float] = []
    laws: list[Doubles] = []
    reason: str | None = None
    while not core.idle:
        news = core.step()
        for item in news.progress:
            if item.request_id != name:
                continue
            tokens += item.token_ids
            reason = item.finish_reason or reason
            found = None if news.result is None else news.result.logprobs
            if found is None or item.place < 0:
                continue
            count = len(item.token_ids)
            chosen += found.chosen[item.place, :count].tolist()
            if params.logprobs == -1:
                laws += [_law(*pair) for pair in zip(
                    found.ids[item.place, :count], found.values[item.place, :count], strict=True
                )]  # fmt: skip
    return _Run(tokens, chosen, laws, reason)


def _law(ids: NDArray[np.int32], values: NDArray[np.float32]) -> Doubles:
    """Values by token id; -inf for ids that are not there."""
    law = np.full(int(ids.max()) + 1, -np.inf)
    there = ids >= 0
    law[ids[there]] = values[there]
    return law


def rerun(core: EngineCore, recorded: Recorded, *, bound: float = BOUND) -> Verdict:
    """Compare a record with this engine.

    Args:
        core: idle, of the model of the record; nothing else may run.
        recorded: request and answer. Of a constrained request without its masks (older traces)
            only the log-probabilities are judged.
        bound: nats that numerics may make; see `BOUND`.

    Raises:
        ConfigError: there is nothing in the record to compare.
    """
    request, answer = recorded.request, recorded.answer
    tokens = answer.token_ids
    if not tokens:
        raise ConfigError(f"request {request.request_id!r} has no recorded token to compare")
    broken = answer.finish_reason == "error"
    judged = not recorded.constrained or len(answer.masks) == len(tokens)
    if not judged and not answer.logprobs:
        raise ConfigError(
            f"request {request.request_id!r} has a constraint, whose masks are not recorded: only "
            "log-probabilities could be compared; record it anew, or with logprobs=0"
        )
    params = replace(request.params, logprobs=request.params.logprobs or 0, prompt_logprobs=None)
    free: _Run | None = None
    if judged:
        free = _run(core, recorded, params)
        if not broken and _same(free, recorded, judged=True):
            return Verdict("equal", None, 0.0, 0.0, "tokens and log-probabilities are equal")
    forced = replace(params, forced_token_ids=tuple(tokens), max_tokens=len(tokens), min_tokens=0)
    held = _run(core, recorded, forced)
    if not judged and _same(held, recorded, judged=False):
        return Verdict("equal", None, 0.0, 0.0, "log-probabilities of the tokens are equal")
    places = _places(core, recorded, free, held)
    verdict = _judge(places, len(tokens), bound)
    if broken and verdict.kind != "corruption" and (free is None or free.reason != "error"):
        reason = f"after {len(tokens)} tokens the recorded request failed; this one goes on"
        return replace(verdict, kind="corruption", place=places[-1], reason=reason)
    return verdict


def _same(found: _Run, recorded: Recorded, *, judged: bool) -> bool:
    answer = recorded.answer
    known = len(answer.token_ids)
    # A stop string, an error or the end of the recording cuts an answer short.
    ended = answer.finish_reason == "stop" and _tokens_end(recorded)
    complete = (ended or answer.finish_reason == "length") and judged
    tokens = found.tokens if complete else found.tokens[:known]
    logprobs = found.chosen[:known] if answer.logprobs else []
    return tokens == answer.token_ids and logprobs == answer.logprobs


def _tokens_end(recorded: Recorded) -> bool:
    """Whether the last token is one that ends its request."""
    return recorded.answer.token_ids[-1] in recorded.request.stop_ids


def _places(core: EngineCore, recorded: Recorded, free: _Run | None, held: _Run) -> list[Place]:
    """Every recorded token that this engine reaches with the tokens before it forced."""
    request, answer = recorded.request, recorded.answer
    needed: list[float | None] = [None] * len(held.tokens)
    if free is not None:
        needed = list(_needed(core, recorded))
    equal = True
    places: list[Place] = []
    for position, token in enumerate(answer.token_ids[: len(held.tokens)]):
        here = None
        if free is not None and equal and position < len(free.tokens):
            here = free.tokens[position]
            equal = here == token
        drift = None
        if answer.logprobs and request.params.logprobs_mode == "raw":
            drift = abs(answer.logprobs[position] - held.chosen[position])
            drift = math.inf if math.isnan(drift) else drift
        places.append(Place(position, token, here, drift, needed[position]))
    return places


def _needed(core: EngineCore, recorded: Recorded) -> list[float]:
    """How much must change for each choice: `Place.needed`."""
    request, tokens = recorded.request, recorded.answer.token_ids
    params = request.params
    soft = replace(
        params,
        temperature=1.0 if params.greedy else params.temperature,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        logprobs=-1,
        logprobs_mode="processed",
        forced_token_ids=tuple(tokens),
        max_tokens=len(tokens),
        min_tokens=min(params.min_tokens, len(tokens)),
        prompt_logprobs=None,
    )
    run = _run(core, recorded, soft)
    first = len(request.prompt_token_ids)
    return [
        needed_change(law, token, request, first + i)
        for i, (law, token) in enumerate(zip(run.laws, tokens, strict=False))
    ]


def needed_change(law: Doubles, token: int, request: Request, position: int) -> float:
    """By how many nats log-probabilities must change to make a token the choice.

    Args:
        law: [vocab] log-probabilities before truncation, at the request's temperature (greedy: at
            1); -inf = excluded.
        token: that was chosen.
        request: its parameters and seed.
        position: index of the token, the prompt's included.
    """
    params = request.params
    if token >= len(law) or law[token] == -np.inf:
        return math.inf
    if params.greedy:
        return float(law.max() - law[token]) / 2  # one rises, the other falls
    scaled = torch.from_numpy(law - law.max()).to(torch.float32)[None]
    log_min_p = math.log(params.min_p) if params.min_p > 0 else -math.inf
    kept = truncate(
        scaled,
        torch.tensor([log_min_p]),
        torch.tensor([max(params.top_k, 0)]),
        torch.tensor([params.top_p], dtype=torch.float64),
    )[0]
    signed = request.seed - (1 << 64) if request.seed >= 1 << 63 else request.seed
    key = NoiseKey(*(torch.tensor([n]) for n in (signed, position, request.sample)))
    noise = gumbel_noise(key, Purpose.TARGET, len(law))[0]
    score = (scaled[0] + noise).numpy().astype(np.float64)
    inside = torch.isfinite(kept).numpy()
    rises = 0.0 if inside[token] else max(0.0, float(law[inside].min() - law[token]))
    # A rival loses if its score falls below, or if it is cut off itself.
    better = inside & (score > score[token])
    if not better.any():
        return rises / 2
    loses = score[better] - score[token]
    if not inside.all():
        loses = np.minimum(loses, law[better] - law[~inside].max())
    return float(max(rises, loses.max())) / 2


def _judge(places: list[Place], recorded: int, bound: float) -> Verdict:
    drift = needed = 0.0
    first: Place | None = None
    for place in places:
        sudden = first is None and place.position >= _SURE
        if sudden and place.drift is not None and place.drift > _SUDDEN:
            reason = (
                f"{place.position} log-probabilities are equal bit by bit, so the order of sums is "
                f"the same; then that of token {place.token} is {place.drift:.3g} nats away"
            )
            return Verdict("corruption", place, drift, needed, reason)
        if place.drift is not None and not place.drift <= bound:
            return Verdict("corruption", place, drift, needed, _why(place, bound))
        if place.needed is not None and not place.needed <= bound:
            return Verdict("corruption", place, drift, needed, _why(place, bound))
        drift, needed = max(drift, place.drift or 0.0), max(needed, place.needed or 0.0)
        if first is None and (place.drift or place.here not in (None, place.token)):
            first = place
    if len(places) < recorded:
        last = places[-1]
        reason = f"the record goes on after token {last.token}, which ends the request"
        return Verdict("corruption", last, drift, needed, reason)
    reason = (
        f"log-probabilities drift by up to {drift:.2g} nats and choices need a change of up to "
        f"{needed:.2g}; numerics may make {bound:g}"
    )
    return Verdict("numerics", first, drift, needed, reason)


def _why(place: Place, bound: float) -> str:
    if place.drift is not None and not place.drift <= bound:
        return (
            f"the recorded log-probability of token {place.token} is {place.drift:.3g} nats away, "
            f"numerics may make {bound:g}"
        )
    if place.needed == math.inf:
        return f"token {place.token} is impossible by the request's own rules"
    return (
        f"to choose token {place.token} log-probabilities would have to change by "
        f"{place.needed:.3g} nats, numerics may make {bound:g}"
    )
