"""Makes the example traces, each from a seed. Knows nothing of how they are served."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from deepinfer.bench.simulate.trace import TraceLine
from deepinfer.errors import ConfigError

_PREFIXES = 32
_TOPICS_EXPONENT = 1.1  # popularity of a prefix falls with its rank to this power
_CONVERSATIONS = 640
_CONVERSATIONS_A_SECOND = 8.0
_SEVERAL_TURNS = 0.35
_THINK_SECONDS = 10.0


def shared_prefix(seed: int) -> list[TraceLine]:
    """Questions to assistants with long system prompts, and conversations among them.

    32 prefixes of 2,048 to 24,576 tokens are asked for by a power law, conversations come as a
    Poisson process, a third of them go on for up to six turns; questions and answers have
    log-normal lengths with medians of 700 and 120 tokens.
    """
    draw = random.Random(seed)
    lengths = [draw.randint(2048, 24_576) for _ in range(_PREFIXES)]
    weights = [1 / (1 + rank) ** _TOPICS_EXPONENT for rank in range(_PREFIXES)]
    lines: list[TraceLine] = []
    start = 0.0
    for talk in range(_CONVERSATIONS):
        start += draw.expovariate(_CONVERSATIONS_A_SECOND)
        topic = draw.choices(range(_PREFIXES), weights)[0]
        turns = draw.randint(2, 6) if draw.random() < _SEVERAL_TURNS else 1
        known, arrival = lengths[topic], start
        for _ in range(turns):
            question, answer = _length(draw, 700, 8000), _length(draw, 120, 1000)
            lines.append(
                TraceLine(
                    arrival=round(arrival, 3),
                    prefix=f"system {topic}",
                    prefix_tokens=lengths[topic],
                    prompt_tokens=known + question,
                    output_tokens=answer,
                    session=f"talk {talk}" if turns > 1 else None,
                )
            )
            known += question + answer
            arrival += draw.expovariate(1 / _THINK_SECONDS)
    return sorted(lines, key=lambda line: line.arrival)


def _length(draw: random.Random, median: float, most: int) -> int:
    return min(most, max(1, round(median * draw.lognormvariate(0, 0.8))))


_MAKERS: Mapping[str, Callable[[int], list[TraceLine]]] = {"shared_prefix": shared_prefix}
NAMES = tuple(_MAKERS)


def make_trace(name: str, seed: int) -> list[TraceLine]:
    """A trace by name, in order of arrival.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in _MAKERS:
        raise ConfigError(f"trace {name!r}: use one of {sorted(_MAKERS)}")
    return _MAKERS[name](seed)
