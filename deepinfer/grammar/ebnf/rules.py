"""What follows from the rules of an EBNF grammar: which are needed, finite, empty or regular.

It does not know the matching library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from deepinfer.errors import RequestError
from deepinfer.grammar.ebnf.parse import at_place
from deepinfer.grammar.ebnf.tree import Alt, Chars, Literal, Node, Ref, Repeat, Rules, Seq, Token


def reached_rules(source: str, rules: Rules) -> list[str]:
    """Names of the rules that `root` needs, itself first."""
    reached: dict[str, None] = {"root": None}
    waiting = ["root"]
    while waiting:
        for ref in refs(rules.bodies[waiting.pop()]):
            if ref.name not in rules.bodies:
                raise RequestError(at_place(source, ref.place, f"rule {ref.name!r} is not defined"))
            if ref.name not in reached:
                reached[ref.name] = None
                waiting.append(ref.name)
    return list(reached)


def refs(node: Node) -> Iterator[Ref]:
    """The references in a node, from left to right."""
    if isinstance(node, Ref):
        yield node
    elif isinstance(node, Repeat):
        yield from refs(node.item)
    elif isinstance(node, (Seq, Alt)):
        for item in node.items:
            yield from refs(item)


def unrolled(name: str, body: Node) -> Node:
    """`body` with repetition in place of the rule's own name, if that stands only at one side.

    `a ::= x a | y` is `x* y`, and `a ::= a x | y` is `y x*`.
    """
    if all(ref.name != name for ref in refs(body)):
        return body
    for side in (-1, 0):
        again: list[Node] = []
        stop: list[Node] = []
        for items in _spread(name, body, side):
            if items and isinstance(own := items[side], Ref) and own.name == name:
                again.append(Seq(items[:-1] if side else items[1:]))
            else:
                stop.append(Seq(items))
        if stop and all(ref.name != name for item in again + stop for ref in refs(item)):
            both = (Repeat(Alt(tuple(again)), 0, None), Alt(tuple(stop)))
            return Seq(both if side else both[::-1])
    return body


def _spread(name: str, node: Node, side: int) -> list[tuple[Node, ...]]:
    """The alternatives of `node`, spread out as far as rule `name` stands at their `side`."""
    if all(ref.name != name for ref in refs(node)):
        return [(node,)]
    match node:
        case Alt():
            return [items for item in node.items for items in _spread(name, item, side)]
        case Repeat(least=0, most=1):
            return [(), *_spread(name, node.item, side)]
        case Seq() if side:
            return [(*node.items[:-1], *items) for items in _spread(name, node.items[-1], side)]
        case Seq():
            return [(*items, *node.items[1:]) for items in _spread(name, node.items[0], side)]
        case _:
            return [(node,)]


def least_fixpoint(
    bodies: Mapping[str, Node], holds: Callable[[Node, Collection[str]], bool]
) -> set[str]:
    """Names of the rules for which `holds` follows from the rules it is known to hold for."""
    known: set[str] = set()
    size = -1
    while size < len(known):
        size = len(known)
        for name in reversed(list(bodies)):
            if name not in known and holds(bodies[name], known):
                known.add(name)
    return known


def ends(node: Node, known: Collection[str]) -> bool:
    """Whether some finite text fits."""
    match node:
        case Ref():
            return node.name in known
        case Seq():
            return all(ends(item, known) for item in node.items)
        case Alt():
            return any(ends(item, known) for item in node.items)
        case Repeat():
            return node.least == 0 or ends(node.item, known)
        case _:
            return True


def nullable(node: Node, known: Collection[str]) -> bool:
    """Whether the empty text fits."""
    match node:
        case Literal() | Chars():
            return False
        case Ref():
            return node.name in known
        case Seq():
            return all(nullable(item, known) for item in node.items)
        case Alt():
            return any(nullable(item, known) for item in node.items)
        case Repeat():
            return node.least == 0 or nullable(node.item, known)
        case Token():
            return nullable(node.node, known)


def visible(node: Node, known: Collection[str]) -> bool:
    """Whether a text that is not empty fits."""
    match node:
        case Literal() | Chars():
            return True
        case Ref():
            return node.name in known
        case Seq() | Alt():
            return any(visible(item, known) for item in node.items)
        case Repeat():
            return node.most != 0 and visible(node.item, known)
        case Token():
            return visible(node.node, known)


def regular(node: Node, known: Collection[str]) -> bool:
    """Whether it is made of rules that refer to no rule that is not."""
    return all(ref.name in known for ref in refs(node))
