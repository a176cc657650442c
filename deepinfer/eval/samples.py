"""The sample file: every reply as it came, one JSON object a line, only ever appended to.

A line is a session (a run that asks, with its settings) or a sample. What a killed run leaves is
whole lines and perhaps a piece of one. Knows nothing of scores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from deepinfer.errors import ConfigError
from deepinfer.eval.question import Fields, Question, Sample


@dataclass(frozen=True)
class Session:
    """One run that asked questions.

    Attributes:
        number: 0 for the first run of a file.
        settings: what must be equal in all runs of the file: task, model, sampling, seed.
        samples: samples a problem that the run was to have.
        problems: problems that it was to ask.
        skipped: problems that cannot be asked, and why.
        devices: devices that worked for it, None if unknown.
    """

    number: int
    settings: Fields
    samples: int
    problems: int
    skipped: Fields
    devices: int | None

    def record(self) -> dict[str, Any]:
        """Its JSON object."""
        return {"record": "session", **self.__dict__}


@dataclass(frozen=True)
class History:
    """What a sample file holds, in the order of its lines."""

    sessions: Sequence[Session] = ()
    samples: Sequence[Sample] = ()

    def latest(self) -> dict[tuple[str, int], Sample]:
        """The last reply to every question; earlier ones were attempts that failed."""
        return {sample.place: sample for sample in self.samples}


def read(path: Path) -> History:
    """The content of a sample file; a torn last line is passed over.

    Raises:
        ConfigError: it cannot be read, or is no sample file.
    """
    return _parse(path, _text(path))


def _text(path: Path) -> str:
    """All whole lines."""
    try:
        raw = path.read_bytes()
        return raw[: raw.rfind(b"\n") + 1].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _parse(path: Path, text: str) -> History:
    sessions: list[Session] = []
    samples: list[Sample] = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
            if record["record"] == "session":
                fields = {name: record[name] for name in Session.__dataclass_fields__}
                sessions.append(Session(**fields))
            else:
                samples.append(Sample.of_record(record))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: line {number} is no record of samples: {error}") from error
    if not sessions:
        raise ConfigError(f"{path}: it holds no session, so it is no sample file")
    return History(sessions, samples)


class SampleFile:
    """A sample file that a run appends to.

    Args:
        path: the file.
        settings: see `Session`.
        resume: go on with a file that is there, if it is.

    Attributes:
        history: what it held before.
        session: number of the session to come.

    Raises:
        ConfigError: the file is there and `resume` is off, it was made with other settings, or it
            cannot be written.
    """

    def __init__(self, path: Path, settings: Fields, *, resume: bool):
        self.path = path
        self.history = History()
        self._settings = settings
        exists = path.exists()
        if exists and not resume:
            raise ConfigError(
                f"{path} is there already; go on with --resume, score it with --score-only, or "
                "choose another --output"
            )
        text = _text(path) if exists else ""
        if text:
            self.history = _parse(path, text)
            _check_same(path, self.history.sessions[0].settings, settings)
        self.session = len(self.history.sessions)
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
            self._file.truncate(len(text.encode("utf-8")))  # a torn line must not stay in between
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error}") from error

    def missing(self, questions: Sequence[Question]) -> list[Question]:
        """The questions that have no reply yet, or only one with an error.

        Raises:
            ConfigError: the file holds a reply to another question of the same name.
        """
        latest = self.history.latest()
        left: list[Question] = []
        for question in questions:
            sample = latest.get(question.place)
            if sample is not None and sample.digest != question.digest():
                raise ConfigError(
                    f"{self.path}: problem {question.key}, sample {question.sample} was another "
                    "question; the data or the seed differ, so choose another --output"
                )
            if question.skipped is None and (sample is None or sample.reply.error is not None):
                left.append(question)
        return left

    def begin(self, samples: int, problems: int, skipped: Fields, devices: int | None) -> None:
        """Write the session's line."""
        session = Session(self.session, self._settings, samples, problems, skipped, devices)
        self._write(session.record())

    def add(self, sample: Sample) -> None:
        """Write a sample; it is with the operating system when this returns."""
        self._write(sample.record())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, record: Fields) -> None:
        line = json.dumps(record, ensure_ascii=False)
        # A reply may hold half a surrogate pair, which has no UTF-8; the escaped form has.
        line = line if _encodable(line) else json.dumps(record)
        self._file.write(line + "\n")
        self._file.flush()


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_same(path: Path, before: Fields, now: Fields) -> None:
    names = sorted(before.keys() | now.keys())
    differ = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]
    if differ:
        raise ConfigError(
            f"{path}: made with other settings ({'; '.join(differ)}); use the same ones or choose "
            "another --output"
        )
