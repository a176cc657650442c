"""A matcher of grammars byte by byte, in plain Python: what masks are checked against.

An Earley recogniser over the tree of an EBNF grammar, from its textbook definition. It shares the
tree and the parser with the code under test, and nothing of how texts are matched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deepinfer.grammar import Vocabulary
from deepinfer.grammar.ebnf.parse import parse_ebnf
from deepinfer.grammar.ebnf.tree import Alt, Chars, Literal, Node, Ref, Repeat, Seq
from tests.grammar.vocabularies import LIMITS

_FIRST = {1: 0x00, 2: 0x80, 3: 0x800, 4: 0x10000}
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True)
class _More:
    """The rest of a repetition: `item` up to `most` times, any number if that is None."""

    item: Node
    most: int | None


Symbol = Node | _More


@dataclass(frozen=True)
class _Item:
    """A production under way: what is left of it, and where it began.

    `part` holds the bytes of a character or a literal that stands first in `rest` and is not whole.
    """

    left: Symbol
    rest: tuple[Symbol, ...]
    origin: int
    part: bytes = b""


class Oracle:
    """Which bytes may follow a text of a grammar; one state for each byte so far."""

    def __init__(self, source: str):
        self._rules: Mapping[str, Node] = parse_ebnf(source, LIMITS).bodies
        self._root = Ref("root", 0)
        self.first = (self._closed({_Item(self._root, (self._rules["root"],), 0)}, ()),)

    def masks(self, text: bytes, tokens: Vocabulary) -> set[int]:
        """The ids that may follow `text`, which is a beginning of a text of the grammar."""
        sets = self.first
        for byte in text:
            sets = self.after(sets, byte)
        assert sets[-1], f"{text!r} begins no text"
        legal = {
            id
            for id in range(tokens.size)
            if id not in tokens.control and tokens.token_bytes(id) and self._fits(sets, tokens, id)
        }
        return legal | (set(tokens.end_ids) if self.complete(sets) else set())

    def _fits(self, sets: tuple[frozenset[_Item], ...], tokens: Vocabulary, id: int) -> bool:
        for byte in tokens.token_bytes(id):
            sets = self.after(sets, byte)
        return bool(sets[-1])

    def after(self, sets: tuple[frozenset[_Item], ...], byte: int) -> tuple[frozenset[_Item], ...]:
        """The states with one more byte; the last is empty if it does not fit."""
        if not sets[-1]:
            return sets
        moved = {new for item in sets[-1] if item.rest for new in _scanned(item, byte)}
        return (*sets, self._closed(moved, sets))

    def complete(self, sets: tuple[frozenset[_Item], ...]) -> bool:
        """Whether the text is one of the grammar."""
        return any(i.left == self._root and not i.rest and i.origin == 0 for i in sets[-1])

    def _closed(self, items: set[_Item], before: tuple[frozenset[_Item], ...]) -> frozenset[_Item]:
        here = len(before)
        known: set[_Item] = set()
        while items:
            item = items.pop()
            if item in known:
                continue
            known.add(item)
            if not item.rest:
                parents = known if item.origin == here else before[item.origin]
                items |= {
                    _Item(p.left, p.rest[1:], p.origin)
                    for p in parents
                    if p.rest and p.rest[0] == item.left
                }
                continue
            symbol = item.rest[0]
            for body in self._productions(symbol):
                items.add(_Item(symbol, body, here))
            if any(k.left == symbol and not k.rest and k.origin == here for k in known):
                items.add(_Item(item.left, item.rest[1:], item.origin))
        return frozenset(known)

    def _productions(self, symbol: Symbol) -> Iterator[tuple[Symbol, ...]]:
        match symbol:
            case Ref(name):
                yield (self._rules[name],)
            case Alt(items):
                yield from ((item,) for item in items)
            case Seq(items):
                yield items
            case Repeat(item, least, most):
                more = None if most is None else most - least
                yield (*[item] * least, _More(item, more))
            case _More(item, most):
                yield ()
                if most != 0:
                    yield (item, _More(item, None if most is None else most - 1))
            case Literal(""):
                yield ()
            case _:
                return


def _scanned(item: _Item, byte: int) -> Iterator[_Item]:
    symbol, part = item.rest[0], item.part + bytes([byte])
    if isinstance(symbol, Literal) and symbol.text:
        wanted = symbol.text.encode()
        if wanted.startswith(part):
            yield _moved(item, part, whole=part == wanted)
    elif isinstance(symbol, Chars):
        for low, high in _code_points(part):
            if any(_in_class(point, symbol) for point in _ends_of(symbol, low, high)):
                yield _moved(item, part, whole=low == high)


def _moved(item: _Item, part: bytes, *, whole: bool) -> _Item:
    if whole:
        return _Item(item.left, item.rest[1:], item.origin)
    return _Item(item.left, item.rest, item.origin, part)


def _in_class(point: int, symbol: Chars) -> bool:
    return any(low <= point <= high for low, high in symbol.ranges) != symbol.negated


def _ends_of(symbol: Chars, low: int, high: int) -> Iterator[int]:
    """Code points of [low, high], of which one is in the class if any is."""
    for a, b in [(low, high), *symbol.ranges]:
        yield from (p for p in (a - 1, a, b, b + 1) if low <= p <= high)


def _code_points(part: bytes) -> Iterator[tuple[int, int]]:
    """Ranges of the code points whose UTF-8 starts with `part`."""
    first = part[0]
    length = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if 0x80 <= first < 0xC0 or first > 0xF7 or any(not 0x80 <= b < 0xC0 for b in part[1:]):
        return
    low = first if length == 1 else first & (0x7F >> length)
    for byte in part[1:]:
        low = low << 6 | byte & 0x3F
    free = 6 * (length - len(part))
    low, high = low << free, (low + 1 << free) - 1
    low, high = max(low, _FIRST[length]), min(high, 0x10FFFF)
    a, b = _SURROGATES
    for start, stop in ((low, min(high, a - 1)), (max(low, b + 1), high)):
        if start <= stop:
            yield start, stop
