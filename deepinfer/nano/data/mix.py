"""What training data consist of: the kinds, their parts, and how a document of each is drawn.

Knows nothing of rows and batches but their length.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deepinfer.eval.draw import Draw
from deepinfer.nano.data import arithmetic, calls, invoices, lookups, talk
from deepinfer.nano.data.dialogue import Dialogue, Document, Encoder

KINDS = ("invoice", "arith", "tools", "lookup", "talk", "text")
"""Names of the kinds; a batch holds their indices."""

TEXT = KINDS.index("text")
_SPARE = 64  # tokens by which a look-up may be longer than its estimate
_LONG = 2048  # from this length on, rows are for long look-ups
# Parts of the tokens. An answer to a look-up is a few tokens after hundreds that are only read.
_SHARES = {
    "invoice": 0.24,
    "arith": 0.26,
    "tools": 0.17,
    "lookup": 0.27,
    "talk": 0.04,
    "text": 0.02,
}
_LONG_SHARES = {
    "invoice": 0.1, "arith": 0.1, "tools": 0.06, "lookup": 0.7, "talk": 0.02, "text": 0.02
}  # fmt: skip

# Answers to look-ups are rare among the tokens, and count more.
_EMPHASIS = {"lookup": 2.0, "tools": 1.5}


def shares(length: int) -> Mapping[int, float]:
    """Kind -> part of the tokens, in rows of `length`."""
    parts = _LONG_SHARES if length >= _LONG else _SHARES
    return {KINDS.index(name): part for name, part in parts.items()}


def opening(length: int) -> int | None:
    """The kind that rows of `length` begin with, if any: long look-ups need empty rows."""
    return KINDS.index("lookup") if length >= _LONG else None


def dialogue(kind: int, draw: Draw, length: int) -> Dialogue:
    """A dialogue of a kind other than text, meant for rows of `length` tokens."""
    match KINDS[kind]:
        case "invoice":
            return invoices.dialogue(draw)
        case "arith":
            return arithmetic.dialogue(draw)
        case "tools":
            return calls.dialogue(draw)
        case "lookup":
            return lookups.dialogue(draw, _room(draw, length))
        case _:
            return talk.dialogue(draw)


def document(kind: int, draw: Draw, length: int, encoder: Encoder) -> Document:
    """A document of a kind."""
    if kind == TEXT:
        return encoder.text(talk.text(draw))
    made = encoder.dialogue(dialogue(kind, draw, length))
    emphasis = np.float32(_EMPHASIS.get(KINDS[kind], 1))
    return Document(made.ids, made.weights * emphasis)


def _room(draw: Draw, length: int) -> int:
    """Tokens of a look-up: every size in short rows, mostly long ones in long rows."""
    if length >= _LONG:
        return draw.number(length * 5 // 8, length - _SPARE)
    return draw.number(min(192, length), length)
