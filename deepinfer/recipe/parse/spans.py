"""The labelled spans that model output is cut into.

It does not know how they are told to a client.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Label(Enum):
    """What a stretch of output is."""

    REASONING = auto()
    CONTENT = auto()
    CALL = auto()  # a call begins; the text is the name of its tool
    ARGUMENTS = auto()  # a piece of JSON text of the call that began last
    SKIP = auto()  # markup, and text that the dialect drops
    STOP = auto()  # a stop sequence, which is the text; the output ends here
    # Only between the state machine and the cutter of pieces:
    KEY = auto()  # the name of a parameter, quotes included
    STRING = auto()  # the inside of a string value, not yet escaped
    JSON = auto()  # another value
    FIXED = auto()  # content that stays a piece of its own


class Span(NamedTuple):
    """A stretch of output.

    `text` is what a client gets to see; it differs from the source where JSON is escaped or
    completed. `size` counts the code points of the source, so the sizes of all spans add up
    to the length of the output, less what is still held back.
    """

    label: Label
    text: str
    size: int
