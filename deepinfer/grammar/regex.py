"""Regular expressions, and lists of choices, in the language of the matching library.

The dialect is that of ECMA-262 (`\\d` and `\\w` are ASCII) as far as it needs no look-around and no
back-references. It does not know JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import cast

from llguidance import regex_to_lark

from deepinfer.errors import RequestError
from deepinfer.grammar.library import grammar_error, grammar_of, reason_of
from deepinfer.grammar.limits import Limits

_ANCHORS = {"^", "$", r"\A", r"\b", r"\B", r"\z", r"\Z", r"\G", r"\<", r"\>"}


def regex_rule(source: str, limits: Limits) -> str:
    """A rule for the texts that match all of `source`; anchors at its two ends are allowed.

    Raises:
        RequestError: it does not parse or needs what the library cannot do; with the position.
    """
    check_regex(source, limits, "regex")
    return regex_terminal(source) if source else '""'


def choice_rule(source: str) -> str:
    """A rule for the strings of a JSON list."""
    strings = cast("list[str]", json.loads(source))
    # One regex, so that a string may continue another one.
    pattern = "|".join(escape(string) for string in dict.fromkeys(strings))
    return f"/({pattern})/"


def regex_terminal(source: str) -> str:
    """`source`, which is not empty, as the library writes a regex inside a grammar."""
    return f"/{regex_to_lark(source, 'dw')}/".replace("\n", r"\n").replace("\r", r"\r")


def escape(text: str) -> str:
    """A regex that matches `text` and nothing else, free of `/` and of line breaks."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}" for c in text)


def check_regex(source: str, limits: Limits, where: str) -> None:
    """Refuse what the library cannot do, before anything recursive reads it.

    Raises:
        RequestError: with `where`, the position (characters from 0) and the reason.
    """
    depth = 0
    for place, item in _items(source):
        depth += (item == "(") - (item == ")")
        if depth > limits.groups:
            raise RequestError(
                f"{where}: more than {limits.groups} nested groups at position {place}"
            )
        if item == "\\":
            raise RequestError(f"{where}: nothing follows the backslash at position {place}")
        if item == "(" and (flags := re.match(r"\(\?[a-zA-Z]*x", source[place:])):
            raise RequestError(
                f"{where}: {flags.group()!r} at position {place}: "
                "expressions with free white space are not supported"
            )
    if source and (error := _error(regex_terminal(source), limits)):
        raise RequestError(f"{where}: {_explain(source, error, limits)}")


def _error(terminal: str, limits: Limits) -> str:
    return grammar_error(grammar_of(f"start: {terminal}"), limits)


def _items(source: str) -> Iterator[tuple[int, str]]:
    """(position, character or escape) of everything outside character classes."""
    inside = False
    for found in re.finditer(r"\\.|.", source, re.DOTALL):
        item = found.group()
        if inside:
            inside = item != "]"
        elif item == "[":
            inside = True
        else:
            yield found.start(), item


def _explain(source: str, error: str, limits: Limits) -> str:
    """The library's reason, with a position in `source` where there is one."""
    if "lookarounds not supported" in error:
        fine = ((0, "^"), (0, r"\A"), (len(source) - 1, "$"), (len(source) - 2, r"\z"))
        inner = [(p, i) for p, i in _items(source) if i in _ANCHORS and (p, i) not in fine]
        at = f", such as {inner[0][1]!r} at position {inner[0][0]}" if inner else ""
        return f"anchors and word boundaries inside the expression{at}, are not supported"
    # The library saw classes such as `\\d` written out and `/` escaped. To point into the source it
    # is asked about a copy with as many characters, whose error, if it is the same, has a caret.
    copy = source.translate({ord("/"): "_", ord("\n"): "_", ord("\r"): "_"})
    lines = error.splitlines()
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error:")), "")
    shown = _error(f"/{copy}/", limits).splitlines()
    caret = next((i for i, line in enumerate(shown) if "^" in line and not line.strip(" ^")), None)
    if not reason or caret is None or f"error: {reason}" not in shown:
        return reason or reason_of(error)
    place = shown[caret].index("^") - 4  # the library indents by four
    return f"{reason} at position {place}, before {source[place : place + 20]!r}"


def search_pattern(pattern: str) -> str:
    """A regex of all texts in which `pattern`, which `check_regex` accepted, is found somewhere.

    Raises:
        RequestError: it sets flags half-way, which reach beyond the part they stand in.
    """
    if flags := re.search(r"\(\?[a-zA-Z-]+\)", pattern):
        raise RequestError(f"pattern {pattern!r}: the flags {flags.group()} are not supported here")
    parts: list[str] = []
    for part in _alternatives(pattern):
        items = [item for _, item in _items(part)]
        starts = bool(items) and items[0] in ("^", r"\A") and part.startswith(items[0])
        ends = bool(items) and items[-1] in ("$", r"\z") and part.endswith(items[-1])
        body = part[len(items[0]) if starts else 0 : len(part) - len(items[-1]) if ends else None]
        parts.append(f"{'' if starts else '(?s:.*)'}(?:{body}){'' if ends else '(?s:.*)'}")
    return "|".join(parts)


def _alternatives(pattern: str) -> list[str]:
    """`pattern` cut at the bars outside groups and classes."""
    depth, cuts = 0, [-1]
    for place, item in _items(pattern):
        depth += (item == "(") - (item == ")")
        if item == "|" and not depth:
            cuts.append(place)
    return [pattern[a + 1 : b] for a, b in zip(cuts, [*cuts[1:], len(pattern)], strict=True)]
