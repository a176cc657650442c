"""The tree of an EBNF grammar. It knows neither its spelling nor how it is matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Literal:
    """This text."""

    text: str


@dataclass(frozen=True)
class Chars:
    """One character in one of the ranges (first and last code point), or in none of them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool


@dataclass(frozen=True)
class Ref:
    """What a rule stands for; `place` is where it is written."""

    name: str
    place: int


@dataclass(frozen=True)
class Seq:
    """One after the other; of nothing: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alt:
    """One of them."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`item`, `least` to `most` times (None = any number)."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Token:
    """`node`, read by the lexer in one piece; `number` tells its places apart."""

    node: Node
    number: int


Node = Literal | Chars | Ref | Seq | Alt | Repeat | Token
EMPTY = Seq(())


@dataclass(frozen=True)
class Rules:
    """A grammar: its rules, and where each name is defined (characters from 0)."""

    bodies: Mapping[str, Node]
    places: Mapping[str, int]
