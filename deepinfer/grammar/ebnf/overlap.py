"""Can one token go on where another one ends? Answered exactly, on automata.

Sets of characters are integers: bit i stands for the i-th class of characters that no set of the
grammar tells apart. It does not know what the answer is for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from deepinfer.grammar.ebnf.tree import Alt, Chars, Literal, Node, Ref, Repeat, Seq, Token

_LAST = 0x10FFFF
_MOST_POSITIONS = 2_000
_MOST_PAIRS = 500_000
_WRITTEN_OUT = 16  # counts up to here are exact, higher ones are taken as "any number"


class TooLarge(Exception):
    """The automata are too large to be compared."""


class Alphabet:
    """The classes of characters of some nodes."""

    def __init__(self, nodes: Iterable[Node]):
        borders = {0}
        for node in nodes:
            _add_borders(node, borders)
        self._borders = sorted(borders)

    def ranges(self, ranges: Iterable[tuple[int, int]]) -> int:
        """The set of the characters from each first to each last code point."""
        found = 0
        for low, high in ranges:
            first = bisect_right(self._borders, low) - 1
            last = bisect_right(self._borders, high) - 1
            found |= (1 << (last + 1)) - (1 << first)
        return found

    def chars(self, node: Chars) -> int:
        """The set of the characters in a class."""
        found = self.ranges(node.ranges)
        return ((1 << len(self._borders)) - 1) & ~found if node.negated else found


def _add_borders(node: Node, borders: set[int]) -> None:
    match node:
        case Literal():
            for char in node.text:
                borders.update((ord(char), ord(char) + 1))
        case Chars():
            for low, high in node.ranges:
                borders.update((low, high + 1))
        case Seq() | Alt():
            for item in node.items:
                _add_borders(item, borders)
        case Repeat():
            _add_borders(node.item, borders)
        case Ref() | Token():
            pass
    borders.discard(_LAST + 1)


@dataclass
class Positions:
    """An automaton whose states are the places of characters in a regular node.

    Attributes:
        sets: the characters of each place.
        first: places that can begin a text.
        last: places that can end one.
        after: for each place, those that can come next.
        nullable: whether the empty text fits.
    """

    sets: list[int] = field(default_factory=list[int])
    first: set[int] = field(default_factory=set[int])
    last: set[int] = field(default_factory=set[int])
    after: list[set[int]] = field(default_factory=list[set[int]])
    nullable: bool = True

    @property
    def first_chars(self) -> int:
        """The characters that can begin a text."""
        found = 0
        for place in self.first:
            found |= self.sets[place]
        return found


def positions(node: Node, bodies: Mapping[str, Node], alphabet: Alphabet) -> Positions:
    """The automaton of a regular node.

    Raises:
        TooLarge: it would have more than 2,000 places.
    """
    return _Builder(bodies, alphabet).whole(node)


class _Part:
    """First and last places of a part, and whether it can be empty."""

    def __init__(self, first: Iterable[int] = (), last: Iterable[int] = (), empty: bool = True):
        self.first, self.last, self.empty = set(first), set(last), empty


class _Builder:
    def __init__(self, bodies: Mapping[str, Node], alphabet: Alphabet):
        self.bodies = bodies
        self.alphabet = alphabet
        self.built = Positions()

    def whole(self, node: Node) -> Positions:
        part = self.part(node)
        self.built.first, self.built.last = part.first, part.last
        self.built.nullable = part.empty
        return self.built

    def place(self, chars: int) -> _Part:
        number = len(self.built.sets)
        if number == _MOST_POSITIONS:
            raise TooLarge
        self.built.sets.append(chars)
        self.built.after.append(set())
        return _Part([number], [number], empty=False)

    def join(self, left: _Part, right: _Part) -> _Part:
        for place in left.last:
            self.built.after[place] |= right.first
        return _Part(
            left.first | right.first if left.empty else left.first,
            left.last | right.last if right.empty else right.last,
            left.empty and right.empty,
        )

    def part(self, node: Node) -> _Part:
        match node:
            case Literal():
                parts = [self.place(self.alphabet.ranges([(ord(c), ord(c))])) for c in node.text]
                return self.joined(parts)
            case Chars():
                return self.place(self.alphabet.chars(node))
            case Ref():
                return self.part(self.bodies[node.name])
            case Seq():
                return self.joined(self.part(item) for item in node.items)
            case Alt():
                both = _Part(empty=False)
                for item in node.items:
                    part = self.part(item)
                    both.first |= part.first
                    both.last |= part.last
                    both.empty |= part.empty
                return both
            case Repeat():
                return self.repeat(node)
            case Token():
                return self.part(node.node)

    def joined(self, parts: Iterable[_Part]) -> _Part:
        whole = _Part()
        for part in parts:
            whole = self.join(whole, part)
        return whole

    def repeat(self, node: Repeat) -> _Part:
        if node.most == 0:
            return _Part()
        if node.most is None or max(node.least, node.most) > _WRITTEN_OUT:
            part = self.part(node.item)
            self.join(part, part)
            part.empty |= node.least == 0
            return part
        parts: list[_Part] = []
        for count in range(node.most):
            parts.append(self.part(node.item))
            parts[-1].empty |= count >= node.least
        return self.joined(parts)


def runs_over(short: Positions, long: Positions, follows: int) -> bool:
    """Whether some text of `short` and one of the characters `follows` begin a text of `long`.

    Raises:
        TooLarge: there are too many pairs of places to look at.
    """
    return bool(follows) and any(
        a in short.last and any(long.sets[after] & follows for after in long.after[b])
        for a, b in _shared_places(short, long)
    )


def have_common_text(one: Positions, other: Positions) -> bool:
    """Whether some text that is not empty is one of both.

    Raises:
        TooLarge: there are too many pairs of places to look at.
    """
    return any(a in one.last and b in other.last for a, b in _shared_places(one, other))


def _shared_places(one: Positions, other: Positions) -> Iterator[tuple[int, int]]:
    """Pairs of places that the same text leads to."""
    waiting = [(a, b) for a in one.first for b in other.first if one.sets[a] & other.sets[b]]
    seen = set(waiting)
    while waiting:
        a, b = waiting.pop()
        yield a, b
        for next_a in one.after[a]:
            for next_b in other.after[b]:
                pair = (next_a, next_b)
                if pair not in seen and one.sets[next_a] & other.sets[next_b]:
                    seen.add(pair)
                    waiting.append(pair)
        if len(seen) > _MOST_PAIRS:
            raise TooLarge
