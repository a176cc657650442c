"""Cuts a grammar into tokens of a lexer that takes the longest match, so that nothing is lost.

The matching library reads text through such a lexer. A token may be a whole regular part of the
grammar, which is fast, if its longest match is always the right one; where it is not (blanks, then
a line end that the blanks would swallow), the token is split until it is. It does not know how
grammars are written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from deepinfer.errors import RequestError
from deepinfer.grammar.ebnf.order import TokenOrder, members
from deepinfer.grammar.ebnf.overlap import (
    Alphabet,
    Positions,
    TooLarge,
    have_common_text,
    positions,
    runs_over,
)
from deepinfer.grammar.ebnf.rules import least_fixpoint, nullable, refs, regular, visible
from deepinfer.grammar.ebnf.tree import EMPTY, Alt, Chars, Literal, Node, Ref, Repeat, Seq, Token

_MOST_PAIRS = 200_000


class Lexer:
    """Tokens and parser rules of a grammar.

    Attributes:
        bodies: the rules as they were read.
        regular: names of those that can stand inside a token.
        rules: those of the parser; their leaves are tokens and references to one another.
        start: what a text is, made of the same.
    """

    def __init__(self, bodies: Mapping[str, Node]):
        """Cut, and cut again, until the longest match is always right.

        Raises:
            RequestError: the grammar is too large to find out.
        """
        self.bodies = bodies
        self.regular = least_fixpoint(bodies, regular)
        self._nullable = least_fixpoint(bodies, nullable)
        self._visible = least_fixpoint(bodies, visible)
        self._alphabet = Alphabet(bodies.values())
        self._automata: dict[Node, Positions] = {}
        self._over: dict[tuple[Node, Node, int], bool] = {}
        self._common: dict[tuple[Node, Node], bool] = {}
        self._split: set[Node] = set()
        self._tokens: list[Token] = []
        self.rules: dict[str, Node] = {}
        self.start = self._cut()
        try:
            while wrong := self._wrong_token():
                self._split.add(wrong)
                self.start = self._cut()
        except TooLarge:
            raise RequestError(
                "ebnf: the parts between recursive rules are too large to tell where they end; "
                "use shorter rules or smaller counts"
            ) from None

    def is_nullable(self, node: Node) -> bool:
        """Whether the empty text fits a node made of the rules as they were read."""
        return nullable(node, self._nullable)

    def _cut(self) -> Node:
        """Write `rules` anew; the start."""
        self.rules, self._tokens = {}, []
        start = self._lower(Ref("root", 0))
        waiting = [start]
        while waiting:
            for ref in refs(waiting.pop()):
                if ref.name not in self.rules:
                    body = self.bodies[ref.name]
                    if ref.name in self.regular:
                        self._split.add(body)
                    self.rules[ref.name] = self._lower(body)
                    waiting.append(self.rules[ref.name])
        return start

    def _lower(self, node: Node) -> Node:
        """`node` with tokens for leaves; neighbours that are regular share one, unless split."""
        whole = regular(node, self.regular)
        if whole and not visible(node, self._visible):
            return EMPTY
        if whole and (node not in self._split or _single(node)):
            return self._token(node)
        match node:
            case Literal():
                return Seq(tuple(self._token(Literal(char)) for char in node.text))
            case Seq():
                items = node.items if whole else tuple(self._runs(node))
                return Seq(tuple(map(self._lower, items)))
            case Alt():
                items = node.items if whole else tuple(self._gathered(node))
                return Alt(tuple(map(self._lower, items)))
            case Repeat():
                return Repeat(self._lower(node.item), node.least, node.most)
            case _:
                return node

    def _runs(self, node: Seq) -> Iterator[Node]:
        run: list[Node] = []
        for item in node.items:
            if regular(item, self.regular):
                run.append(item)
                continue
            if run:
                yield run[0] if len(run) == 1 else Seq(tuple(run))
            run = []
            yield item
        if run:
            yield run[0] if len(run) == 1 else Seq(tuple(run))

    def _gathered(self, node: Alt) -> Iterator[Node]:
        plain = [item for item in node.items if regular(item, self.regular)]
        if plain:
            yield plain[0] if len(plain) == 1 else Alt(tuple(plain))
        yield from (item for item in node.items if not regular(item, self.regular))

    def _token(self, node: Node) -> Token:
        self._tokens.append(Token(node, len(self._tokens)))
        return self._tokens[-1]

    def _wrong_token(self) -> Node | None:
        """A token that may read on where the text has ended a shorter one; None if none does.

        Raises:
            TooLarge: there are too many tokens to compare.
        """
        order = TokenOrder(self.start, self.rules, len(self._tokens), self._nullable)
        chars = [self._automaton(token.node).first_chars for token in self._tokens]
        follows = [_union(chars[i] for i in members(after)) for after in order.after_token]
        pairs = _Pairs(len(self._tokens))
        pairs.add(order.first, order.first)  # in both orders, and so are all that follow
        for short, long in pairs:
            if self._runs_over(short, long, follows[short]):
                return self._tokens[long].node
            if self._have_common_text(short, long):
                # Both may have been read: what can follow either is awaited at once.
                pairs.add(order.after_token[short], order.after_token[long])
        return None

    def _runs_over(self, short: int, long: int, follows: int) -> bool:
        nodes = self._tokens[short].node, self._tokens[long].node
        key = (*nodes, follows)
        if key not in self._over:
            automata = (self._automaton(nodes[0]), self._automaton(nodes[1]))
            self._over[key] = runs_over(*automata, follows)
        return self._over[key]

    def _have_common_text(self, one: int, other: int) -> bool:
        if one == other:
            return True
        nodes = self._tokens[one].node, self._tokens[other].node
        if nodes not in self._common:
            self._common[nodes] = have_common_text(*map(self._automaton, nodes))
        return self._common[nodes]

    def _automaton(self, node: Node) -> Positions:
        if node not in self._automata:
            self._automata[node] = positions(node, self.bodies, self._alphabet)
        return self._automata[node]


class _Pairs:
    """Pairs of tokens that were added, each once, the first added first."""

    def __init__(self, tokens: int):
        self._seen = [0] * tokens
        self._added: set[tuple[int, int]] = set()
        self._waiting: deque[tuple[int, int]] = deque()
        self._left = _MOST_PAIRS

    def add(self, ones: int, others: int) -> None:
        """Add each of a set with each of another.

        Raises:
            TooLarge: there are too many.
        """
        if (ones, others) in self._added:
            return
        self._added.add((ones, others))
        for one in members(ones):
            new = others & ~self._seen[one]
            self._seen[one] |= new
            self._left -= new.bit_count()
            if self._left < 0:
                raise TooLarge
            self._waiting.extend((one, other) for other in members(new))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self._waiting:
            yield self._waiting.popleft()


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _single(node: Node) -> bool:
    """Whether it is one character, which nothing can cut."""
    return isinstance(node, Chars) or (isinstance(node, Literal) and len(node.text) == 1)
