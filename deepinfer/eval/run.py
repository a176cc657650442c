"""A run: ask what is missing, keep every reply, score what is kept.

Knows nothing of the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from deepinfer.errors import ConfigError
from deepinfer.eval.backend import Backend
from deepinfer.eval.draw import seed_of
from deepinfer.eval.question import Ask, Fields, Question, Reply, Sample, Settings, Verdict
from deepinfer.eval.samples import History, SampleFile
from deepinfer.eval.tasks import Task

Verdicts = Mapping[tuple[str, int], Verdict]


OpenBackend = Callable[[], AbstractContextManager[tuple[Backend, int | None]]]
"""Opens a back-end and says how many devices it has, None if that is not known."""


def settings_record(
    task: Task, settings: Settings, seed: int, model: str, more: Fields
) -> dict[str, object]:
    """What has to be equal in all runs that share a sample file.

    Args:
        task: the question set.
        settings: how answers are drawn.
        seed: of the run.
        model: its name.
        more: what else changes answers, such as numerics.
    """
    return {"task": task.name, "model": model, "seed": seed, **settings.__dict__, **more}


def collect(
    questions: Sequence[Question],
    file: SampleFile,
    settings: Settings,
    seed: int,
    open_backend: OpenBackend,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Ask what the file lacks, and write every reply as it comes.

    Args:
        questions: all of the run.
        file: the sample file, opened with the settings of the run.
        settings: how answers are drawn.
        seed: of the run; the seed of a sample depends on it, the problem and the sample alone.
        open_backend: called only if something is missing.
        clock: seconds.

    Returns:
        How many questions were asked.

    Raises:
        ConfigError: the file holds replies to other questions, or every problem is skipped.
    """
    left = file.missing(questions)
    if not left:
        if not file.history.samples:
            raise ConfigError("nothing to ask: every problem is skipped")
        return 0
    skipped = {question.key: question.skipped for question in questions if question.skipped}
    problems = {question.key for question in questions} - skipped.keys()
    samples = 1 + max(question.sample for question in questions)
    asks = [Ask(question, settings, seed_of(seed, *question.place)) for question in left]
    with open_backend() as (backend, devices):
        file.begin(samples, len(problems), skipped, devices)
        begin = clock()

        def deliver(place: int, reply: Reply) -> None:
            question = left[place]
            file.add(
                Sample(
                    *question.place,
                    digest=question.digest(),
                    target=question.target,
                    facts=question.facts,
                    seed=asks[place].seed,
                    reply=reply,
                    session=file.session,
                    at=clock() - begin,
                )
            )

        backend.answer(asks, deliver)
    return len(left)


def judged_by_rules(task: Task, history: History) -> Verdicts:
    """The scorer's verdict on the last reply to every question.

    Raises:
        ConfigError: the file is of another task, or it holds no reply.
    """
    made_for = history.sessions[0].settings.get("task")
    if made_for != task.name:
        raise ConfigError(f"these are samples of {made_for}, not of {task.name}")
    if not history.samples:
        raise ConfigError("the file holds no replies yet")
    return {
        place: task.verdict(sample.target, sample.facts, sample.reply)
        for place, sample in history.latest().items()
    }


def verdict_records(history: History, verdicts: Verdicts) -> list[Fields]:
    """One JSON object a question: verdict beside what it is about."""
    return [
        {
            "key": sample.key,
            "sample": sample.sample,
            "group": sample.facts.get("group"),
            "target": sample.target,
            **verdicts[place].__dict__,
            "finish_reason": sample.reply.finish_reason,
        }
        for place, sample in history.latest().items()
    ]


def new_run_path(task: Task) -> Path:
    """Where samples go unless told otherwise."""
    return Path(f"{task.name}.samples.jsonl")
