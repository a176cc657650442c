"""Random requests of three protocols: most nearly right, many wrong in one place, some in many.

Everything is drawn from one `random.Random`, so that a seed or hypothesis can stand behind it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.recipe.request_chat import ChatMaker
from tests.recipe.request_messages import MessagesMaker
from tests.recipe.request_responses import ResponsesMaker

MAKERS = {"chat": ChatMaker, "responses": ResponsesMaker, "messages": MessagesMaker}


@dataclass(frozen=True)
class Case:
    """A request and the options that it is converted with (keyword to name or value)."""

    protocol: str
    body: Any
    options: dict[str, Any] = field(default_factory=dict)


def draw_case(source: random.Random) -> Case:
    """A request of any protocol."""
    protocol = source.choice(tuple(MAKERS))
    maker = MAKERS[protocol](source)
    body: Any = maker.body()
    for _ in range(0 if maker.careful else source.choice((0, 1, 1, 2))):
        maker.spoil(body)
    if maker.chance(0.15):
        body = maker.as_text(body)
    return Case(protocol, body, maker.options())
