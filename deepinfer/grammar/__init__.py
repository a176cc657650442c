"""Structured output: which tokens may come next, so that the finished text satisfies a constraint.

It knows token ids and their bytes, and neither tensors nor the engine.
"""

from deepinfer.grammar.compiler import Compiler, WorkerLost
from deepinfer.grammar.constraint import Constraint, SoArgs, constraint_of, parse_so_args
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.matcher import Grammar, Matcher
from deepinfer.grammar.start import AT_ONCE, After, AtEach, Start
from deepinfer.grammar.tool_calls import Tool, tool_calls, tool_start
from deepinfer.grammar.vocabulary import Vocabulary
from deepinfer.request import StructuredOutputsParams

__all__ = [
    "AT_ONCE",
    "After",
    "AtEach",
    "Compiler",
    "Constraint",
    "Grammar",
    "Limits",
    "Matcher",
    "SoArgs",
    "Start",
    "StructuredOutputsParams",
    "Tool",
    "Vocabulary",
    "WorkerLost",
    "constraint_of",
    "parse_so_args",
    "tool_calls",
    "tool_start",
]
