"""Reads the EBNF that users of GBNF grammars know, into a tree.

    root ::= "a" [b-z0-9]* ( digits | "\\n" ){1,3} .?   # a comment
    digits ::= [^a-z]+

It does not know how a grammar is matched.
"""

from __future__ import annotations

import re

from deepinfer.errors import RequestError
from deepinfer.grammar.ebnf.tree import EMPTY, Alt, Chars, Literal, Node, Ref, Repeat, Rules, Seq
from deepinfer.grammar.limits import Limits

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_DEFINES = re.compile(r"([A-Za-z_][A-Za-z0-9_.\-]*)(?:\s|#[^\n]*(?:\n|$))*::=")
_BLANK = re.compile(r"(?:\s|#[^\n]*(?:\n|$))+")
_COUNT = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "v": "\v", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}
_MOST_TIMES = 100_000


def parse_ebnf(source: str, limits: Limits) -> Rules:
    """Read all rules of `source`.

    Raises:
        RequestError: it is no grammar of this dialect; with the position, line and reason.
    """
    return _Reader(source, limits).rules()


class _Reader:
    """A place in the source."""

    def __init__(self, source: str, limits: Limits):
        self.source = source
        self.limits = limits
        self.place = 0
        self.depth = 0

    def rules(self) -> Rules:
        bodies: dict[str, Node] = {}
        places: dict[str, int] = {}
        self.blank()
        while self.place < len(self.source):
            found = _DEFINES.match(self.source, self.place)
            if not found:
                raise self.error("a rule such as name ::= ... was expected here")
            name = found.group(1)
            if name in bodies:
                raise self.error(f"rule {name!r} is defined twice")
            if len(bodies) == self.limits.rules:
                raise self.error(f"more than {self.limits.rules} rules")
            places[name] = self.place
            self.place = found.end()
            bodies[name] = self.alternatives()
            if self.peek() == ")":
                raise self.error("this bracket was never opened")
        if "root" not in bodies:
            raise RequestError("ebnf: there is no rule called root, where every text starts")
        return Rules(bodies, places)

    def alternatives(self) -> Node:
        items = [self.sequence()]
        while self.peek() == "|":
            self.place += 1
            items.append(self.sequence())
        return items[0] if len(items) == 1 else Alt(tuple(items))

    def sequence(self) -> Node:
        items: list[Node] = []
        while True:
            self.blank()
            if self.peek() in ("", "|", ")") or _DEFINES.match(self.source, self.place):
                return items[0] if len(items) == 1 else Seq(tuple(items))
            items.append(self.repeated(self.element()))

    def element(self) -> Node:
        start = self.peek()
        if start == '"':
            return self.literal()
        if start == "[":
            return self.chars()
        if start == "(":
            return self.group()
        if start == ".":
            self.place += 1
            return Chars((), negated=True)
        name = _NAME.match(self.source, self.place)
        if not name:
            raise self.error(f'{start!r} starts nothing; quote text, as in "{start}"')
        if self.source.startswith("(", name.end()):
            raise self.error(f"{name.group()}(...) is a macro of another engine; write it as rules")
        place, self.place = self.place, name.end()
        return Ref(name.group(), place)

    def repeated(self, item: Node) -> Node:
        while True:
            sign = self.peek()
            if sign in ("*", "+", "?"):
                self.place += 1
                item = Repeat(item, int(sign == "+"), 1 if sign == "?" else None)
            elif sign == "{":
                item = self.counted(item)
            else:
                return item
            self.depth_check(item)

    def depth_check(self, item: Node) -> None:
        depth = 0
        while isinstance(item, Repeat):
            item, depth = item.item, depth + 1
        if depth > self.limits.nesting:
            raise self.error(f"more than {self.limits.nesting} repeats of one another")

    def counted(self, item: Node) -> Node:
        found = _COUNT.match(self.source, self.place)
        if not found or not (found.group(1) or found.group(3)):
            raise self.error("a count such as {2}, {2,} or {2,5} was expected")
        low, comma, high = found.groups()
        if len(low) > 9 or len(high) > 9:
            raise self.error(f"a count of more than {_MOST_TIMES}")
        least = int(low or 0)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > _MOST_TIMES:
            raise self.error(f"a count of more than {_MOST_TIMES}")
        if most is not None and most < least:
            raise self.error(f"at least {least} but at most {most} times")
        self.place = found.end()
        return Repeat(item, least, most)

    def group(self) -> Node:
        start = self.place
        if self.source.startswith(("(=", "(!", "(?"), start):
            raise self.error("look-ahead is not supported")
        self.depth += 1
        if self.depth > self.limits.nesting:
            raise self.error(f"more than {self.limits.nesting} nested groups")
        self.place += 1
        inner = self.alternatives()
        if self.peek() != ")":
            self.place = start
            raise self.error("this bracket is never closed")
        self.place += 1
        self.depth -= 1
        return inner

    def literal(self) -> Node:
        start = self.place
        self.place += 1
        text: list[str] = []
        while self.peek() != '"':
            if self.peek() in ("", "\n"):
                self.place = start
                raise self.error("this text is never closed with a quote")
            text.append(self.character())
        self.place += 1
        return Literal("".join(text)) if text else EMPTY

    def chars(self) -> Node:
        start = self.place
        self.place += 1
        negated = self.peek() == "^"
        self.place += negated
        ranges: list[tuple[int, int]] = []
        while self.peek() != "]":
            if self.peek() in ("", "\n"):
                self.place = start
                raise self.error("this class is never closed with ]")
            place, low = self.place, ord(self.character())
            high = low
            if self.peek() == "-" and self.source[self.place + 1 : self.place + 2] != "]":
                self.place += 1
                high = ord(self.character())
            if high < low:
                self.place = place
                raise self.error("the range ends before it starts")
            ranges.append((low, high))
        self.place += 1
        if not ranges and not negated:
            raise self.error("the class before it is empty: no character is in it")
        return Chars(tuple(ranges), negated)

    def character(self) -> str:
        """One character of a text or class, with its escape resolved."""
        char = self.peek()
        if not char:
            raise self.error("the grammar ends inside a text")
        self.place += 1
        if char != "\\":
            return char
        letter = self.peek()
        if letter in _HEX:
            digits = self.source[self.place + 1 : self.place + 1 + _HEX[letter]]
            code = int(digits, 16) if re.fullmatch(r"[0-9A-Fa-f]+", digits) else -1
            if len(digits) < _HEX[letter] or not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
                raise self.error(f"\\{letter} needs {_HEX[letter]} digits of a character's number")
            self.place += 1 + len(digits)
            return chr(code)
        if letter in _SIMPLE:
            self.place += 1
            return _SIMPLE[letter]
        if not letter or letter.isalnum():
            raise self.error(f"the escape \\{letter} is unknown")
        self.place += 1
        return letter

    def peek(self) -> str:
        return self.source[self.place : self.place + 1]

    def blank(self) -> None:
        if found := _BLANK.match(self.source, self.place):
            self.place = found.end()

    def error(self, reason: str) -> RequestError:
        return RequestError(at_place(self.source, self.place, reason))


def at_place(source: str, place: int, reason: str) -> str:
    """`reason` with a position of an EBNF source, as its messages say it."""
    line = source.count("\n", 0, place) + 1
    rest = source[place : place + 20]
    return f"ebnf: {reason} (position {place}, line {line}, before {rest!r})"
