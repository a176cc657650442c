"""Writes the rules of a parser and the tokens of its lexer in the library's grammar language.

It does not know how they were found.
"""

from __future__ import annotations

from deepinfer.grammar.ebnf.lexer import Lexer
from deepinfer.grammar.ebnf.tree import Alt, Chars, Literal, Node, Ref, Repeat, Seq, Token
from deepinfer.grammar.regex import escape


def write_lark(lexer: Lexer) -> str:
    """The grammar that `lexer` found, its first rule called `start`."""
    return _Writer(lexer).text()


class _Writer:
    """Terminals are written when a rule first needs them."""

    def __init__(self, lexer: Lexer):
        self.lexer = lexer
        self.numbers = {name: number for number, name in enumerate(lexer.bodies)}
        self.terminals: dict[Node, str] = {}
        self.lines: list[str] = []

    def text(self) -> str:
        self.lines.append(f"start: {self.rule(self.lexer.start)}")
        for name, parsed in self.lexer.rules.items():
            self.lines.append(f"r{self.numbers[name]}: {self.rule(parsed)}")
        for name, body in self.lexer.bodies.items():
            if name in self.lexer.regular:
                self.lines.append(f"R{self.numbers[name]}: {self.terminal(body)}")
        return "\n".join(self.lines)

    def rule(self, parsed: Node) -> str:
        """Part of a rule of the parser."""
        match parsed:
            case Token():
                return self.token(parsed)
            case Ref():
                return f"r{self.numbers[parsed.name]}"
            case Seq(items=()):
                return '""'
            case Seq():
                return " ".join(self.rule(part) for part in parsed.items)
            case Alt():
                return f"({' | '.join(self.rule(part) for part in parsed.items)})"
            case Repeat():
                return f"({self.rule(parsed.item)}){_count(parsed)}"
            case _:
                raise AssertionError(f"{parsed} is no part of a rule")

    def token(self, token: Token) -> str:
        """A terminal, which is never empty, where it may be absent."""
        node = token.node
        may_be_absent = self.lexer.is_nullable(node)
        if node not in self.terminals:
            self.terminals[node] = f"T{len(self.terminals)}"
            text = self.terminal(node)
            if may_be_absent:
                text = f"({text}) & /(?s:.+)/"
            self.lines.append(f"{self.terminals[node]}: {text}")
        name = self.terminals[node]
        return f"({name} | )" if may_be_absent else name

    def terminal(self, node: Node) -> str:
        """Part of a terminal."""
        match node:
            case Literal():
                return f"/{escape(node.text)}/"
            case Chars():
                return f"/{_class(node)}/"
            case Ref():
                return f"R{self.numbers[node.name]}"
            case Seq(items=()):
                return '""'
            case Seq():
                return " ".join(self.terminal(item) for item in node.items)
            case Alt():
                return f"({' | '.join(self.terminal(item) for item in node.items)})"
            case Repeat():
                return f"({self.terminal(node.item)}){_count(node)}"
            case Token():
                raise AssertionError("tokens hold no tokens")


def _count(node: Repeat) -> str:
    if node.most is None:
        return {0: "*", 1: "+"}.get(node.least, f"{{{node.least},}}")
    return f"{{{node.least},{node.most}}}"


def _class(node: Chars) -> str:
    if not node.ranges:
        return "(?s:.)"
    ranges = "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in node.ranges)
    return f"[{'^' if node.negated else ''}{ranges}]"
