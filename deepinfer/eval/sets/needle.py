"""A look-up in a long context: one of many similar facts, scattered in prose, made from a seed.

Lengths are estimates: a byte count stands for tokens, since the set knows no tokenizer. What a
prompt really had is in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer.errors import ConfigError
from deepinfer.eval.draw import Draw
from deepinfer.eval.extract import after_thinking, last_number
from deepinfer.eval.question import Fields, Question, Reply, Verdict, right, wrong

BYTES_PER_TOKEN = 4.0
_PLACES = (
    "harbour", "library", "station", "orchard", "museum", "bakery", "castle", "airport",
    "theatre", "market", "school", "garden", "lighthouse", "workshop", "laboratory", "stable",
)  # fmt: skip
_SIDES = ("northern", "southern", "eastern", "western", "upper", "lower", "old", "new")
_SUBJECTS = ("The wind", "A long train", "The old road", "Every visitor", "The night watch",
             "A grey cat", "The river", "Nobody", "The first snow", "A small boat")  # fmt: skip
_VERBS = ("passed", "reached", "left behind", "looked at", "waited for", "came back to",
          "ran along", "was seen near")  # fmt: skip
_OBJECTS = ("the stone bridge", "a field of barley", "the last houses", "an empty square",
            "the closed gate", "a row of poplars", "the quiet canal", "the hill")  # fmt: skip
_ENDS = ("before noon", "without a sound", "and then the light changed", "as it did every year",
         "while the bells were ringing", "for no reason at all", "late in autumn")  # fmt: skip
_SENTENCES_A_FACT = 6  # on average, one states a number


def questions(
    count: int, seed: int, lengths: Sequence[int], bytes_per_token: float = BYTES_PER_TOKEN
) -> list[Question]:
    """`count` questions, the lengths in turn; question i is the same for every count.

    Args:
        count: how many.
        seed: of all draws.
        lengths: tokens of the contexts, estimated.
        bytes_per_token: of the estimate, 1..64.

    Raises:
        ConfigError: a length is below 64, no length is given, or the bytes are out of range.
    """
    if not lengths or min(lengths) < 64:
        raise ConfigError(f"lengths {list(lengths)}: give lengths of 64 tokens or more")
    if not 1 <= bytes_per_token <= 64:
        raise ConfigError(f"{bytes_per_token} bytes a token: use a number from 1 to 64")
    return [
        _question(Draw("needle", seed, i), str(i), lengths[i % len(lengths)], bytes_per_token)
        for i in range(count)
    ]


def _question(draw: Draw, key: str, length: int, bytes_per_token: float) -> Question:
    names = draw.several([f"{s} {p}" for s in _SIDES for p in _PLACES], len(_SIDES) * len(_PLACES))
    sentences: list[str] = []
    stated: list[tuple[str, int, int]] = []
    size, wanted = 0, length * bytes_per_token
    while size < wanted:
        late = not stated and 2 * size >= wanted  # one fact there must be
        if late or (len(stated) < len(names) and draw.number(1, _SENTENCES_A_FACT) == 1):
            name, number = names[len(stated)], draw.number(10_000, 99_999)
            stated.append((name, number, len(sentences)))
            sentences.append(f"The number of the {name} is {number}.")
        else:
            parts = (draw.pick(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS))
            sentences.append(" ".join(parts) + ".")
        size += len(sentences[-1]) + 1  # all of it is ASCII
    name, number, place = draw.pick(stated)
    asked = f"What is the number of the {name}? Reply with the number only."
    content = f"Read this text.\n\n{' '.join(sentences)}\n\n{asked}"
    quarter = 4 * place // len(sentences) + 1
    facts = {"group": f"{length} tokens", "quarter": quarter, "facts": len(stated)}
    return Question(key, [{"role": "user", "content": content}], number, facts=facts)


def score(target: Any, facts: Fields, reply: Reply) -> Verdict:
    """Right if the last number of the answer is the target.

    Args:
        target: the number.
        facts: not used.
        reply: what came back.
    """
    del facts
    value = last_number(after_thinking(reply.content))
    if value is None:
        return wrong("no number")
    return right(str(value)) if value == target else wrong("another number", str(value))
