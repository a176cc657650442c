"""The grammar language of the matching library, as all front ends use it.

It does not know what a grammar stands for.
"""

from __future__ import annotations

import re

from llguidance import LLMatcher

from deepinfer.grammar.limits import Limits

# A mask has every token that fits, not only those of the tokenizer's own way to cut the text.
_OPTIONS = '%llguidance {"no_forcing": true}'


def grammar_of(rules: str) -> str:
    """A grammar of rules, of which `start` is the first."""
    return LLMatcher.grammar_from_lark(f"{_OPTIONS}\n{rules}")


def grammar_error(grammar: str, limits: Limits) -> str:
    """Why the library refuses a grammar, in one or more lines; empty if it does not."""
    return LLMatcher.validate_grammar(grammar, limits=limits.for_library())


def reason_of(message: str) -> str:
    """The part of a library message that is about the input, without its place in our rules."""
    line = message.strip().partition("\n")[0]
    return re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", line)
