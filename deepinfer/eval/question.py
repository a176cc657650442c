"""What an evaluation asks, gets back and concludes: plain data, and its form in a sample file.

Knows no question set, no scorer and no back-end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from deepinfer.errors import ConfigError

Fields = Mapping[str, Any]
"""A JSON object."""


@dataclass(frozen=True)
class Question:
    """One thing to ask once: a problem, and which of its samples this is.

    Attributes:
        key: names the problem within its set; the same on every run.
        sample: 0 <= sample < samples a problem.
        messages: chat messages, `{"role", "content"}` and for tool turns their further keys.
        target: what the scorer compares with; JSON.
        tools: functions that may be called, in the form of chat requests.
        schema: JSON Schema that the answer has to follow, or None.
        facts: what the scorer or the report needs besides the target, such as an option order;
            stored with every sample. `facts["group"]` splits the report.
        skipped: why it is counted but not asked, or None.
    """

    key: str
    messages: Sequence[Fields]
    target: Any
    sample: int = 0
    tools: Sequence[Fields] = ()
    schema: Fields | None = None
    facts: Fields = field(default_factory=dict)
    skipped: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Problem and sample: what is unique in a run."""
        return self.key, self.sample

    def digest(self) -> str:
        """16 hex digits of what the model is shown and what is expected of it."""
        shown = [list(self.messages), list(self.tools), self.schema, self.target]
        text = json.dumps(shown, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Settings:
    """How answers are drawn; the same for every question of a run.

    Attributes:
        max_tokens: most tokens of an answer, reasoning included.
        temperature: 0 takes the likeliest token.
        top_p: smallest set of likeliest tokens whose mass reaches it.
        thinking: whether the model reasons first; None leaves it to the back-end.
        effort: how much it reasons, such as "low", "high" or "max"; None likewise.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    thinking: bool | None = None
    effort: str | None = None


@dataclass(frozen=True)
class Ask:
    """A question on its way to a back-end, with the seed of its noise."""

    question: Question
    settings: Settings
    seed: int


@dataclass(frozen=True)
class Call:
    """A function call of a reply; `arguments` is the text of a JSON object, not checked."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """What came back for one question.

    Attributes:
        content: the answer without reasoning, if the back-end tells them apart.
        reasoning: the reasoning, or "".
        calls: function calls.
        finish_reason: "stop", "length", "tool_calls", ...; None if nothing came.
        error: why there is no answer, or None.
        prompt_tokens, cached_tokens, completion_tokens: counts of the back-end; completion tokens
            include reasoning, cached tokens are part of the prompt's. None if it does not say.
        seconds: from asking to the whole reply, retries included.
        attempts: requests sent for it.
    """

    content: str = ""
    reasoning: str = ""
    calls: Sequence[Call] = ()
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    attempts: int = 1

    @property
    def truncated(self) -> bool:
        """Whether the length limit ended it."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Verdict:
    """What a scorer makes of a reply.

    Attributes:
        correct: the task is done; a reply with an error never is.
        share: part of the task that is right, 0..1; 1 if and only if correct.
        answer: what was taken as the answer, None if none was found.
        reason: why it is not correct, in a few words.
        confidence: 0..1, if the model was asked to state it.
    """

    correct: bool
    share: float
    answer: str | None = None
    reason: str | None = None
    confidence: float | None = None


def right(answer: str) -> Verdict:
    """A correct answer."""
    return Verdict(correct=True, share=1.0, answer=answer)


def wrong(reason: str, answer: str | None = None, share: float = 0.0) -> Verdict:
    """An answer that is missing or not correct."""
    return Verdict(correct=False, share=share, answer=answer, reason=reason)


@dataclass(frozen=True)
class Sample:
    """A reply with all that scoring it needs; one line of a sample file.

    Attributes:
        key, sample, digest, target, facts: of the question.
        seed: seed of the noise.
        reply: what came back.
        session: number of the run that asked, counting runs that were resumed.
        at: seconds from the start of that run's asking to the arrival of the reply.
    """

    key: str
    sample: int
    digest: str
    target: Any
    facts: Fields
    seed: int
    reply: Reply
    session: int
    at: float

    @property
    def place(self) -> tuple[str, int]:
        """Problem and sample."""
        return self.key, self.sample

    def record(self) -> dict[str, Any]:
        """Its JSON object."""
        return {"record": "sample", **asdict(self)}

    @staticmethod
    def of_record(record: Fields) -> Sample:
        """The sample of a JSON object that `record` made.

        Raises:
            ConfigError: it is no such object.
        """
        try:
            values: dict[str, Any] = {name: record[name] for name in Sample.__dataclass_fields__}
            reply = dict(values["reply"])
            reply["calls"] = tuple(Call(**call) for call in reply["calls"])
            values["reply"] = Reply(**reply)
            return Sample(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"no sample record: {error!r} in {str(record)[:80]}") from error
