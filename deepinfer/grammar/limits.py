"""How large a constraint may be and how much work it may cause.

It does not know what a grammar means; the numbers are guards against hostile or broken input.
"""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLParserLimits


@dataclass(frozen=True)
class Limits:
    """Guards of one compilation and of every step that follows.

    Attributes:
        source_bytes: UTF-8 bytes of the text a caller sends.
        nesting: depth of brackets in a schema.
        groups: depth of groups in a regex or an EBNF rule.
        rules: rules of an EBNF grammar.
        compile_seconds: wall-clock time of one compilation, the front end included.
        compile_bytes: address space one compilation may add to its worker.
        grammar_symbols: symbols of the compiled grammar.
        lexer_states: states the lexer may build in the life of a grammar; 1 to 2 kB each.
        lexer_fuel: work units for building the lexer (about 50,000 a millisecond).
        step_fuel: work units of the lexer in one mask (about 14,000 a millisecond).
        step_items: parser items in one mask (about 20,000 a millisecond).
        row_items: parser items after one byte; a schema needs some for each optional property.
    """

    source_bytes: int = 1 << 20
    nesting: int = 64
    groups: int = 200
    rules: int = 1_000
    compile_seconds: float = 10.0
    compile_bytes: int = 1 << 30
    grammar_symbols: int = 500_000
    lexer_states: int = 50_000
    lexer_fuel: int = 1_000_000
    step_fuel: int = 200_000
    step_items: int = 1_000_000
    row_items: int = 20_000

    def for_library(self) -> LLParserLimits:
        """The part that the matching library enforces itself."""
        return LLParserLimits(
            max_items_in_row=self.row_items,
            initial_lexer_fuel=self.lexer_fuel,
            step_lexer_fuel=self.step_fuel,
            step_max_items=self.step_items,
            max_lexer_states=self.lexer_states,
            max_grammar_size=self.grammar_symbols,
            verbose_errors=False,  # errors go to users; the state of the parser means nothing there
        )
