"""Which tokens can come first, and which after each other, in the rules of a parser.

Sets of tokens are integers: bit i stands for token i. Where a rule was referred to from is
forgotten, so that the sets may be too large but never too small. It does not know what the tokens
read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from deepinfer.grammar.ebnf.rules import nullable
from deepinfer.grammar.ebnf.tree import Alt, Node, Ref, Repeat, Seq, Token


def members(tokens: int) -> Iterator[int]:
    """The numbers in a set, from low to high."""
    while tokens:
        lowest = tokens & -tokens
        yield lowest.bit_length() - 1
        tokens ^= lowest


class TokenOrder:
    """Neighbourhood of tokens.

    Attributes:
        first: tokens that can begin a text.
        after_token: for each token, those that can come next.
    """

    def __init__(
        self, start: Node, rules: Mapping[str, Node], count: int, may_be_empty: Collection[str]
    ):
        """Find the sets.

        Args:
            start: what a text is; its leaves and those of the rules are tokens and references.
            rules: what the references stand for.
            count: tokens in all, numbered from 0.
            may_be_empty: rules that fit the empty text.
        """
        self._may_be_empty = may_be_empty
        self._first = dict.fromkeys(rules, 0)
        self._after = dict.fromkeys(rules, 0)
        self.after_token = [0] * count
        self._settled = False
        while not self._settled:
            self._settled = True
            for name, body in reversed(list(rules.items())):
                self._grow(self._first, name, self._begin(body))
        self.first = self._begin(start)
        self._settled = False
        while not self._settled:
            self._settled = True
            self._walk(start, 0)
            for name, body in rules.items():
                self._walk(body, self._after[name])

    def _grow(self, sets: dict[str, int], name: str, more: int) -> None:
        if more & ~sets[name]:
            sets[name] |= more
            self._settled = False

    def _begin(self, node: Node) -> int:
        match node:
            case Token():
                return 1 << node.number
            case Ref():
                return self._first[node.name]
            case Alt():
                return self._union(node.items)
            case Seq():
                visible = next(
                    (i for i, item in enumerate(node.items) if not self._is_nullable(item)), None
                )
                return self._union(node.items if visible is None else node.items[: visible + 1])
            case Repeat():
                return self._begin(node.item)
            case _:
                raise AssertionError(f"{node} is no token")

    def _union(self, items: tuple[Node, ...]) -> int:
        found = 0
        for item in items:
            found |= self._begin(item)
        return found

    def _is_nullable(self, node: Node) -> bool:
        return nullable(node, self._may_be_empty)

    def _walk(self, node: Node, after: int) -> None:
        """Note that the tokens `after` can come after `node`."""
        match node:
            case Token():
                if after & ~self.after_token[node.number]:
                    self.after_token[node.number] |= after
                    self._settled = False
            case Ref():
                self._grow(self._after, node.name, after)
            case Alt():
                for item in node.items:
                    self._walk(item, after)
            case Seq():
                for item in reversed(node.items):
                    self._walk(item, after)
                    begin = self._begin(item)
                    after = begin | after if self._is_nullable(item) else begin
            case Repeat():
                self._walk(node.item, after if node.most == 1 else after | self._begin(node.item))
            case _:
                raise AssertionError(f"{node} is no token")
