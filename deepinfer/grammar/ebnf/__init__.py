"""EBNF grammars in the language of the matching library.

Everything that is not recursive becomes one regex; rules that refer to themselves become rules of
the library's parser. It does not know the spelling of grammars.
"""

from __future__ import annotations

from deepinfer.errors import RequestError
from deepinfer.grammar.ebnf.lexer import Lexer
from deepinfer.grammar.ebnf.parse import at_place, parse_ebnf
from deepinfer.grammar.ebnf.rules import ends, least_fixpoint, reached_rules, unrolled
from deepinfer.grammar.ebnf.write import write_lark
from deepinfer.grammar.library import grammar_of
from deepinfer.grammar.limits import Limits


def translate_ebnf(source: str, limits: Limits) -> str:
    """A grammar of exactly the texts that the rule `root` of an EBNF derives.

    Raises:
        RequestError: it does not parse, a rule is missing, or one can never end; with the position.
    """
    rules = parse_ebnf(source, limits)
    reached = reached_rules(source, rules)
    bodies = {name: unrolled(name, rules.bodies[name]) for name in reached}
    ending = least_fixpoint(bodies, ends)
    for name in reached:
        if name not in ending:
            place = rules.places[name]
            raise RequestError(at_place(source, place, f"rule {name!r} never ends: no text fits"))
    return grammar_of(write_lark(Lexer(bodies)))
