"""Traces of requests as lengths: reading them, and the token ids they stand for.

Knows nothing of scheduling. A line of a trace is `{"arrival": seconds, "prefix": name,
"prefix_tokens": n, "prompt_tokens": n, "output_tokens": n, "session": name (optional)}`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from deepinfer.errors import ConfigError

VOCABULARY = 129_280
_NUMBERS = ("prefix_tokens", "prompt_tokens", "output_tokens")
_KEYS = {"arrival", "prefix", *_NUMBERS}


@dataclass(frozen=True)
class TraceLine:
    """A request.

    Attributes:
        arrival: seconds after the start; of a later turn of a session the earliest time, for it
            comes when the turn before it has its answer.
        prefix: name of the text that the prompt starts with; prompts of one name share it.
        prefix_tokens: how much of that text.
        prompt_tokens: of the whole prompt, the prefix included.
        output_tokens: tokens that are generated, neither more nor fewer.
        session: name of a conversation; a later turn's prompt starts with all that was said.
    """

    arrival: float
    prefix: str
    prefix_tokens: int
    prompt_tokens: int
    output_tokens: int
    session: str | None = None

    def to_json(self) -> str:
        """One line of a trace."""
        fields = asdict(self)
        if self.session is None:
            del fields["session"]
        return json.dumps(fields)


def parse_line(text: str) -> TraceLine:
    """One line of a trace.

    Raises:
        ConfigError: a field is missing, unknown or out of range.
    """
    try:
        data: object = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError("expected an object")
    fields = cast("Mapping[str, object]", data)
    if missing := sorted(_KEYS - set(fields)):
        raise ConfigError(f"field(s) {missing} are missing")
    if unknown := sorted(set(fields) - _KEYS - {"session"}):
        raise ConfigError(f"unknown field(s) {unknown}")
    arrival, session = fields["arrival"], fields.get("session")
    if isinstance(arrival, bool) or not isinstance(arrival, (int, float)):
        raise ConfigError(f"arrival {arrival!r}: use seconds")
    if not (math.isfinite(arrival) and arrival >= 0):
        raise ConfigError(f"arrival {arrival!r}: use seconds >= 0")
    counts: list[int] = []
    for name, least in zip(_NUMBERS, (0, 1, 1), strict=True):
        value = fields[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} {value!r}: use an integer >= {least}")
        counts.append(value)
    if counts[0] > counts[1]:
        raise ConfigError(f"prefix_tokens {counts[0]} exceeds prompt_tokens {counts[1]}")
    name = None if session is None else str(session)
    return TraceLine(float(arrival), str(fields["prefix"]), *counts, session=name)


def parse_lines(lines: Iterable[str], where: str) -> list[TraceLine]:
    """Lines of a trace in order of arrival; blank ones are passed over.

    Raises:
        ConfigError: a line cannot be used; the message names it.
    """
    found: list[TraceLine] = []
    for number, text in enumerate(lines, start=1):
        if text.strip():
            try:
                found.append(parse_line(text))
            except ConfigError as error:
                raise ConfigError(f"{where}, line {number}: {error}") from error
    if not found:
        raise ConfigError(f"{where}: the trace is empty")
    return sorted(found, key=lambda line: line.arrival)


def read_trace(path: Path) -> list[TraceLine]:
    """A file of lines; see `parse_lines`.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return parse_lines(text.splitlines(), str(path))


def stream_number(name: str) -> int:
    """64 bits that stand for a named text."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def stream_ids(stream: NDArray[np.uint64], position: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Token ids of texts at positions; both are broadcast. Equal arguments, equal ids."""
    golden, first, second = (
        np.uint64(value)
        for value in (0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB)
    )
    with np.errstate(over="ignore"):
        word = stream + (position + np.uint64(1)) * golden
        word = (word ^ (word >> np.uint64(30))) * first
        word = (word ^ (word >> np.uint64(27))) * second
    return ((word ^ (word >> np.uint64(31))) % np.uint64(VOCABULARY)).astype(np.int64)


def text_ids(name: str, tokens: int) -> list[int]:
    """The first `tokens` ids of a named text."""
    positions = np.arange(tokens, dtype=np.uint64)
    return stream_ids(np.uint64(stream_number(name)), positions).tolist()  # pyright: ignore[reportArgumentType]


class Conversations:
    """Makes prompts of trace lines, and remembers what sessions said."""

    def __init__(self) -> None:
        self._said: dict[str, list[int]] = {}

    def prompt(self, number: int, line: TraceLine) -> tuple[int, ...]:
        """Ids of a line's prompt: prefix or what was said, then ids that nobody else has.

        Args:
            number: of the line, which makes its own ids.
            line: the request.
        """
        said = None if line.session is None else self._said.get(line.session)
        known = text_ids(f"prefix {line.prefix}", line.prefix_tokens) if said is None else said
        known = known[: line.prompt_tokens]
        own = text_ids(f"line {number}", line.prompt_tokens - len(known))
        return (*known, *own)

    def answered(self, line: TraceLine, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Note an answer."""
        if line.session is not None:
            self._said[line.session] = [*prompt, *output]
