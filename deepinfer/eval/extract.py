"""Answers in running text: boxed groups, letters, numbers, JSON objects. Pure functions of text.

Where a text holds several candidates the last one counts: models correct themselves. Knows
nothing of targets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

_THINK_END = "</think>"
_INTEGER = re.compile(r"[+-]?\d+(?:\.0+)?")
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![A-Za-z0-9_])")
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# What a value may be dressed in without being another value.
_DRESS = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|\^\s*\{?\s*\\circ\s*\}?|[\s$]")


def after_thinking(text: str) -> str:
    """The text after the last end-of-thinking mark; "" if thinking was begun and never ended."""
    _, mark, answer = text.rpartition(_THINK_END)
    if not mark and text.lstrip().startswith("<think>"):
        return ""
    return answer.strip()


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}` whose braces balance."""
    for start in reversed([m.end() for m in re.finditer(r"\\boxed\s*\{", text)]):
        depth = 1
        for end in range(start, len(text)):
            if text[end] in "{}" and text[end - 1] != "\\":
                depth += 1 if text[end] == "{" else -1
            if depth == 0:
                return text[start:end].strip()
    return None


def last_math(text: str) -> str | None:
    """What stands in the last formula between dollar signs, `\\( \\)` or `\\[ \\]`."""
    found = [group for match in _MATH.finditer(text) for group in match.groups() if group]
    return found[-1].strip() if found else None


def as_integer(text: str) -> int | None:
    """The integer that a short piece of mathematics states, such as `x = 073` or `1,024.`.

    None if it states something else; an expression is not computed.
    """
    value = _DRESS.sub(r"\1", text).rpartition("=")[2]
    value = _NOISE.sub("", value).rstrip(".")
    if re.fullmatch(r"[+-]?\d{1,3}(?:(?:,|\{,\})\d{3})+", value):
        value = value.replace("{,}", "").replace(",", "")
    return int(value.partition(".")[0]) if _INTEGER.fullmatch(value) else None


def last_number(text: str) -> Decimal | None:
    """The last number of a text; thousands may be set off with commas."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def as_number(text: str) -> Decimal | None:
    """The number that the whole text is, or None."""
    try:
        value = Decimal(text.strip().replace(",", ""))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def last_letter(text: str, letters: str) -> str | None:
    """The option that an answer names.

    Tried in this order, the last match of each: a line part `Answer: X`, the phrase "answer is
    X", a boxed letter, a letter in parentheses, and a text that is nothing but a letter.

    Args:
        text: the answer.
        letters: upper-case letters that are options, such as "ABCD".
    """
    bare = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\b|[*_`${}]|\\boxed\b", "", text)
    one = f"[{letters}]"
    # "A" and "I" are words too: with more words behind them they name no option.
    named = rf"{one}\b(?!(?<=[AI])[ \t]+[a-z])"
    patterns = (
        rf"(?i:answer)[ \t]*[:：][ \t]*\(?({named}|(?i:{one})(?=\)?[.,;]?[ \t]*$))",
        rf"(?i:answer|option|choice)[ \t]+is[ \t]*:?[ \t]*(?:option[ \t]+)?\(?({named})",
    )
    for pattern in patterns:
        if found := re.findall(pattern, bare, re.MULTILINE):
            return found[-1].upper()
    boxed = last_boxed(text)
    if boxed is not None and (letter := _only_letter(boxed, one)):
        return letter
    if found := re.findall(rf"\(({one})\)", bare):
        return found[-1]
    return _only_letter(text, one)


def _only_letter(text: str, one: str) -> str | None:
    bare = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\b|[*_`${}\s]", "", text)
    match = re.fullmatch(rf"\(?({one})[).]?", bare)
    return match[1] if match else None


def field(text: str, *names: str) -> str | None:
    """The rest of the last line that begins with `NAME:`, without bold marks around either.

    Args:
        text: the answer.
        names: names of the field; case does not count.
    """
    either = "|".join(re.escape(name) for name in names)
    pattern = rf"(?im)^[ \t]*[*_#]*[ \t]*(?:{either})[ \t]*[*_]*[ \t]*[:：][*_]*[ \t]*(.*)$"
    found = [value.strip().strip("*_").strip() for value in re.findall(pattern, text)]
    return found[-1] if found and found[-1] else None


def json_object(text: str) -> dict[str, Any] | None:
    """The last JSON object of a text at its outermost level, fenced or not; None without one."""
    found: dict[str, Any] | None = None
    for value in _json_values(text):
        found = value
    return found


def _json_values(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(parse_float=Decimal, object_pairs_hook=_unique)
    place = text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            yield value
        place = text.find("{", end)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless a key stands in it twice: then which value counts is anybody's guess."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice")
    return values


def same_json(first: object, second: object) -> bool:
    """Whether two JSON values are equal: numbers by value, `true` is not 1, key order is free."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            same_json(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same_json, first, second))
    if _is_number(first) and _is_number(second):
        return Decimal(str(first)) == Decimal(str(second))
    return type(first) is type(second) and first == second


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
