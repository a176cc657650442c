"""Arithmetic of two and three digits and short word problems, made from a seed.

Knows nothing of calculators: the target is computed here.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from deepinfer.eval.draw import Draw
from deepinfer.eval.extract import after_thinking, as_integer, last_boxed, last_number
from deepinfer.eval.question import Fields, Question, Reply, Verdict, right, wrong

_ENDING = {"en": " Reply with the number only.", "zh": "只回答数字。"}
_ASKED = {
    "en": ("What is {}?", "Compute {}.", "Please work out {}."),
    "zh": ("{}等于多少？", "请计算{}。", "算一算：{}"),
}
_SIGNS = {"sum": "+", "difference": "-", "product": "×"}
_STORIES = {
    "en": (
        "A shop has {a} {thing} and gets {b} more. {c} are sold. How many are left?",
        "There are {a} {thing} on one shelf and {b} on another; {c} are taken away. How many "
        "remain?",
        "Somebody counts {a} {thing}, then {b} more, and finds that {c} were counted twice. How "
        "many are there?",
    ),
    "zh": (
        "商店里有{a}个{thing}，又进货{b}个，卖出{c}个。还剩多少个？",
        "一个架子上有{a}个{thing}，另一个架子上有{b}个，拿走{c}个。还有多少个？",
    ),
}
_THINGS = {
    "en": ("lamps", "notebooks", "oranges", "tickets", "keys", "stamps", "cups", "chairs"),
    "zh": ("苹果", "杯子", "本子", "灯泡", "盒子", "橙子"),
}


def questions(count: int, seed: int) -> list[Question]:
    """`count` questions; question i is the same for every count."""
    return [_question(Draw("arith", seed, i), i) for i in range(count)]


def _question(draw: Draw, number: int) -> Question:
    language = draw.pick(("en", "zh"))
    kind = draw.pick(("sum", "difference", "product", "story"))
    digits = draw.pick((2, 3))
    low, high = 10 ** (digits - 1), 10**digits - 1
    a, b = draw.number(low, high), draw.number(low, high)
    if kind == "story":
        c = draw.number(1, min(a + b, high))
        thing = draw.pick(_THINGS[language])
        text, target = draw.pick(_STORIES[language]).format(a=a, b=b, c=c, thing=thing), a + b - c
    else:
        if kind == "product":
            b = draw.number(2, 9) if digits == 3 else b
        text = draw.pick(_ASKED[language]).format(f"{a} {_SIGNS[kind]} {b}")
        target = {"sum": a + b, "difference": a - b, "product": a * b}[kind]
    facts = {"group": f"{kind}, {digits} digits", "language": language}
    content = text + _ENDING[language]
    return Question(str(number), [{"role": "user", "content": content}], target, facts=facts)


def score(target: Any, facts: Fields, reply: Reply) -> Verdict:
    """Right if the boxed number, or without one the last number of the answer, is the target.

    Args:
        target: the integer.
        facts: not used.
        reply: what came back.
    """
    del facts
    # A minus sign that is typeset is a minus sign.
    text = after_thinking(reply.content).replace("\N{MINUS SIGN}", "-")
    boxed = last_boxed(text)
    value: int | Decimal | None = as_integer(boxed) if boxed is not None else last_number(text)
    if value is None:
        return wrong("no number")
    return right(str(value)) if value == target else wrong("another number", str(value))
