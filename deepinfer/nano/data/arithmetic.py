"""Sums, differences, products and word problems, worked out digit by digit.

Columns go from the last digit to the first, each with what was carried into it, so that every
token is a look-up in a small table. Knows nothing of tokens.
"""

from __future__ import annotations

from deepinfer.eval.draw import Draw
from deepinfer.eval.sets import arith
from deepinfer.nano.data.dialogue import Dialogue, ask
from deepinfer.nano.data.seeds import training_seed

_DIRECT = 8  # one in so many is answered without reasoning
_OWN = 3  # one in so many is not from the question set's templates


def added(a: int, b: int) -> str:
    """The columns of a + b, ending with the sum; a, b >= 0."""
    steps, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        steps.append(f"{x}+{y}{'+1' if carry else ''}={x + y + carry}")
        carry = int(x + y + carry >= 10)
    return f"{a}+{b}: {'; '.join(steps)}; so {a + b}."


def subtracted(a: int, b: int) -> str:
    """The columns of a - b, ending with the difference; a, b >= 0."""
    if a < b:
        return f"{a}<{b}, turn it round. {subtracted(b, a)} With the sign: {a - b}."
    steps, borrow = [], 0
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        lent = 10 * int(x < y + borrow)
        steps.append(f"{x + lent}-{y}{'-1' if borrow else ''}={x + lent - y - borrow}")
        borrow = lent // 10
    return f"{a}-{b}: {'; '.join(steps)}; so {a - b}."


def multiplied(a: int, b: int) -> str:
    """The columns of a × b, ending with the product; a >= 0, 0 <= b <= 99."""
    if b >= 10:
        tens, ones = b // 10, b % 10
        parts = [multiplied(a, ones), multiplied(a, tens), added(a * ones, 10 * a * tens)]
        return " ".join(parts)
    steps, carry = [], 0
    for place in range(len(str(a))):
        x = a // 10**place % 10
        more = f"+{carry}" if carry else ""
        total = f"={x * b + carry}" if carry else ""
        steps.append(f"{x}×{b}{more}={x * b}{more}{total}")
        carry = (x * b + carry) // 10
    return f"{a}×{b}: {'; '.join(steps)}; so {a * b}."


def dialogue(draw: Draw) -> Dialogue:
    """A problem with its solution; one in eight without reasoning."""
    if draw.number(1, _OWN) == 1:
        asked, reasoning, value, only = _own(draw)
    else:
        asked, reasoning, value = _of_the_set(draw)
        only = True
    says = "The answer is {}." if asked.isascii() or "×" in asked[:9] else "答案是{}。"
    answer = str(value) if only else says.format(value)
    return ask(asked, answer, None if draw.number(1, _DIRECT) == 1 else reasoning)


def _of_the_set(draw: Draw) -> tuple[str, str, int]:
    """A question of the evaluation set's kinds, from a seed that no evaluation uses."""
    (question,) = arith.questions(1, training_seed(draw))
    content: str = question.messages[0]["content"]
    numbers = _numbers(content)
    kind = question.facts["group"].partition(",")[0]
    if kind == "story":
        a, b, c = numbers
        return content, _chain(a, b, c), question.target
    a, b = numbers
    work = {"sum": added, "difference": subtracted, "product": multiplied}[kind]
    return content, work(a, b), question.target


def _chain(a: int, b: int, c: int) -> str:
    return f"{a}+{b}-{c}. {added(a, b)} {subtracted(a + b, c)}"


def _numbers(text: str) -> list[int]:
    """Whole numbers of a text, in order."""
    return [int(run) for run in "".join(c if c.isdigit() else " " for c in text).split()]


_NAMES = ("Ada", "Ben", "Clara", "Elif", "Hugo", "Ines", "Liam", "Mei", "Noor", "Rosa")
_GOODS = ("pens", "apples", "books", "coins", "shells", "cards", "eggs", "bottles", "plates")
_GOODS_ZH = ("支笔", "个苹果", "本书", "枚硬币", "张卡片", "个鸡蛋", "个瓶子")
_STORIES = {
    "more": (
        "{n} has {a} {g} and buys {b} more. How many {g} does {n} have now?",
        "There are {a} {g} in the house and {b} in the garden. How many are there in all?",
        "小明有{a}{z}，又买了{b}{z}。他现在一共有多少？",
    ),
    "less": (
        "{n} has {a} {g} and gives {b} of them away. How many are left?",
        "Of {a} {g}, {b} are broken. How many are whole?",
        "小红有{a}{z}，送给别人{b}{z}。还剩多少？",
    ),
    "times": (
        "Each of {b} boxes holds {a} {g}. How many {g} are there in all?",
        "A ticket costs {a} euros. How much do {b} tickets cost?",
        "每个盒子里有{a}{z}，一共有{b}个盒子。一共有多少？",
    ),
}


def _own(draw: Draw) -> tuple[str, str, int, bool]:
    """Other wordings, smaller and larger numbers; question, reasoning, value, number only."""
    top = draw.pick((9, 99, 999))
    a, b = draw.number(0, top), draw.number(0, top)
    kind = draw.pick(("more", "less", "times"))
    if kind == "less" and a < b:
        a, b = b, a
    if kind == "times":
        a, b = draw.number(0, 999), draw.number(2, 9)
        if draw.number(0, 1):
            a, b = draw.number(10, 99), draw.number(10, 99)
    sign = {"more": "+", "less": "-", "times": "×"}[kind]
    work = {"more": added, "less": subtracted, "times": multiplied}[kind](a, b)
    value = {"more": a + b, "less": a - b, "times": a * b}[kind]
    if draw.number(0, 1):
        form = draw.pick(("What is {}?", "{} = ?", "Compute {}", "{}=", "计算{}", "{}是多少？"))
        gap = draw.pick(("", " "))
        return form.format(f"{a}{gap}{sign}{gap}{b}"), work, value, False
    story = draw.pick(_STORIES[kind])
    names = {"n": draw.pick(_NAMES), "g": draw.pick(_GOODS), "z": draw.pick(_GOODS_ZH)}
    return story.format(a=a, b=b, **names), f"{a}{sign}{b}. {work}", value, False
