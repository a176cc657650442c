"""From verdicts to figures: pass@1 with its standard error, lengths, times, cost a finished task.

Pure. Knows nothing of question sets and back-ends.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deepinfer.eval.price import Cost, PriceSheet, Use, cost_of
from deepinfer.eval.question import Sample, Verdict
from deepinfer.eval.samples import History

_BINS = 10


@dataclass(frozen=True)
class Score:
    """The figures of a set or of one group of it.

    Attributes:
        problems: problems with at least one sample.
        samples: samples, errors included.
        pass_at_1: mean over problems of the part of their samples that is correct; an error is
            not correct.
        standard_error: of `pass_at_1`, from the spread between problems; samples of one problem
            are not independent of each other, so they do not count as more problems. None for
            one problem.
        share: mean over problems of the part of a task that is right (fields of an invoice).
        solved: problems with at least one correct sample.
        prompt_tokens: mean of the samples that have a count, else None.
    """

    problems: int
    samples: int
    pass_at_1: float
    standard_error: float | None
    share: float
    solved: int
    prompt_tokens: float | None


@dataclass(frozen=True)
class Summary:
    """All that is reported of a run.

    Attributes:
        score: of the whole set.
        groups: by `facts["group"]`, if there is more than one.
        skipped: problems that were not asked.
        missing: samples that were to be drawn and have no record.
        errors: samples whose last attempt ended in an error.
        truncation_rate: part of the samples without error that the length limit ended.
        completion_tokens: mean of a sample, reasoning included; None without counts.
        calibration_error: mean distance between stated confidence and the part that is correct,
            over ten bins weighted by their samples; None where none is stated.
        use: what all attempts used, failed ones included.
        wall_seconds: time of asking, over all sessions.
        seconds_p50, seconds_p95: of a sample, from asking to the whole reply.
        attempts_per_success: requests sent for each correct sample; None without one.
        device_seconds_per_success: all device time over correct samples (serving.md 6.2).
        cost: money of all attempts; None without a price sheet.
        cost_per_success: `cost.owner` over correct samples.
    """

    score: Score
    groups: Mapping[str, Score]
    skipped: int
    missing: int
    errors: int
    truncation_rate: float
    completion_tokens: float | None
    calibration_error: float | None
    use: Use
    wall_seconds: float
    seconds_p50: float
    seconds_p95: float
    attempts_per_success: float | None
    device_seconds_per_success: float | None
    cost: Cost | None
    cost_per_success: float | None


def summarise(
    history: History,
    verdicts: Mapping[tuple[str, int], Verdict],
    sheet: PriceSheet | None = None,
) -> Summary:
    """The figures of a sample file.

    Args:
        history: the file; at least one sample.
        verdicts: one for the last sample of every question.
        sheet: prices, or None.
    """
    latest = list(history.latest().values())
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in latest:
        groups[str(sample.facts.get("group", "all"))].append(sample)
    good = [sample for sample in latest if sample.reply.error is None]
    last = history.sessions[-1]
    use, wall = used(history)
    successes = sum(verdict.correct for verdict in verdicts.values())
    cost = None if sheet is None else cost_of(use, sheet)
    seconds = sorted(sample.reply.seconds for sample in latest)
    attempts = sum(sample.reply.attempts for sample in history.samples)
    return Summary(
        score=_score(latest, verdicts),
        groups={k: _score(v, verdicts) for k, v in sorted(groups.items())}
        if len(groups) > 1
        else {},
        skipped=len(last.skipped),
        missing=max(last.samples * last.problems - len(latest), 0),
        errors=len(latest) - len(good),
        truncation_rate=sum(s.reply.truncated for s in good) / len(good) if good else 0.0,
        completion_tokens=_mean(s.reply.completion_tokens for s in good),
        calibration_error=calibration_error(list(verdicts.values())),
        use=use,
        wall_seconds=wall,
        seconds_p50=_percentile(seconds, 50),
        seconds_p95=_percentile(seconds, 95),
        attempts_per_success=_per(attempts, successes),
        device_seconds_per_success=_per(use.device_seconds, successes),
        cost=cost,
        cost_per_success=None if cost is None else _per(cost.owner, successes),
    )


def _score(samples: Sequence[Sample], verdicts: Mapping[tuple[str, int], Verdict]) -> Score:
    problems: dict[str, list[Verdict]] = defaultdict(list)
    for sample in samples:
        problems[sample.key].append(verdicts[sample.place])
    means = [sum(v.correct for v in found) / len(found) for found in problems.values()]
    shares = [sum(v.share for v in found) / len(found) for found in problems.values()]
    return Score(
        problems=len(problems),
        samples=len(samples),
        pass_at_1=math.fsum(means) / len(means),
        standard_error=standard_error(means),
        share=math.fsum(shares) / len(shares),
        solved=sum(any(v.correct for v in found) for found in problems.values()),
        prompt_tokens=_mean(sample.reply.prompt_tokens for sample in samples),
    )


def standard_error(means: Sequence[float]) -> float | None:
    """Standard error of the mean of problems: sqrt(sum (x - mean)^2 / (n - 1) / n).

    It is what a bootstrap over problems tends to, times sqrt(n / (n - 1)), without its noise.

    Args:
        means: one value a problem.

    Returns:
        None for fewer than two problems.
    """
    count = len(means)
    if count < 2:
        return None
    mean = math.fsum(means) / count
    return math.sqrt(math.fsum((x - mean) ** 2 for x in means) / (count - 1) / count)


def calibration_error(verdicts: Sequence[Verdict]) -> float | None:
    """Expected calibration error in ten bins of equal width; None if no confidence is stated."""
    bins: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.confidence is not None:
            place = min(int(verdict.confidence * _BINS), _BINS - 1)
            bins[place].append((verdict.confidence, verdict.correct))
    total = sum(len(found) for found in bins.values())
    if not total:
        return None
    return (
        math.fsum(
            abs(math.fsum(sure for sure, _ in found) - sum(correct for _, correct in found))
            for found in bins.values()
        )
        / total
    )


def used(history: History) -> tuple[Use, float]:
    """What all attempts used, and the seconds of asking.

    A session lasted until its last reply came; what a killed one did after that is not known. The
    device time is unknown if it is for any session that asked anything.
    """
    ends: dict[int, float] = defaultdict(float)
    for sample in history.samples:
        ends[sample.session] = max(ends[sample.session], sample.at)
    devices = {session.number: session.devices for session in history.sessions}
    known = [devices[number] for number in ends]
    seconds = None
    if None not in known:
        seconds = math.fsum(end * (devices[number] or 0) for number, end in ends.items())
    replies = [sample.reply for sample in history.samples]
    use = Use(
        device_seconds=seconds,
        prompt_tokens=sum(reply.prompt_tokens or 0 for reply in replies),
        cached_tokens=sum(reply.cached_tokens or 0 for reply in replies),
        completion_tokens=sum(reply.completion_tokens or 0 for reply in replies),
    )
    return use, math.fsum(ends.values())


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _per(amount: float | None, count: int) -> float | None:
    return None if amount is None or count == 0 else amount / count


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that `percent` of them do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]
