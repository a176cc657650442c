"""Look-ups: many facts in a text, then questions for some of them.

Most are answered with the whole fact again, even where its value alone is asked for: what stands
before the value is then the same in text and answer, and that is what a small model finds it by.
Several questions follow one text, since reading is long and an answer is short. Knows nothing of
tokens but a mean length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from deepinfer.eval.draw import Draw
from deepinfer.eval.sets import needle
from deepinfer.nano.data.dialogue import Dialogue, Message, ask
from deepinfer.nano.data.seeds import training_seed

BYTES_PER_TOKEN = 4.35  # of the question set's English with our tokenizer
_ASKED = re.compile(r"What is the number of the (\w+ \w+)\?")
_FACT = re.compile(r"The number of the (\w+ \w+) is (\d+)\.")
_TURN_TOKENS = 36  # at most, of a further question and its answer
_THINKING = 12  # one in so many is answered with reasoning
_MOST_TURNS = 24
_LONGEST_LIST = 1024  # tokens


def dialogue(draw: Draw, room: int) -> Dialogue:
    """A text and questions for facts in it.

    Args:
        draw: of all choices.
        room: tokens that the dialogue should not exceed, about; at least 256.
    """
    long = room > _LONGEST_LIST or draw.number(0, 1) == 1
    return _of_the_set(draw, room) if long else _listed(draw, room)


def _of_the_set(draw: Draw, room: int) -> Dialogue:
    """The question set's text; more questions of its kind follow."""
    thinking = draw.number(1, _THINKING) == 1  # then one answer is learnt, not all
    turns = 1 if thinking else draw.number(1, min(_MOST_TURNS, room // 48))
    most = max(64, room - turns * _TURN_TOKENS)
    least = most * 4 // 5 if room > _LONGEST_LIST else most // 3
    length = draw.number(max(64, least), most)
    (question,) = needle.questions(1, training_seed(draw), [length], BYTES_PER_TOKEN)
    content: str = question.messages[0]["content"]
    facts = dict(_FACT.findall(content))
    (first,) = _ASKED.findall(content)
    if thinking:
        return ask(content, str(question.target), _stated(first, facts[first]))
    messages: list[Message] = _turn(content, _stated(first, facts[first]))
    for name in draw.several(list(facts), min(turns - 1, len(facts))):
        asked = f"What is the number of the {name}? Reply with the number only."
        messages += _turn(asked, _stated(name, facts[name]))
    return Dialogue(messages)


def _stated(name: str, number: str) -> str:
    """A fact, as the text states it."""
    return f"The number of the {name} is {number}."


_OWNERS = ("Ada", "Ben", "Clara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas",
           "Kira", "Liam", "Mei", "Noor", "Oscar", "Priya", "Quinn", "Rosa", "Tess")  # fmt: skip
_OWNED = ("lantern", "notebook", "ticket", "clock", "recipe", "umbrella", "map", "loaf", "key",
          "radio", "violin", "bicycle", "hammer", "letter", "spoon", "blanket")  # fmt: skip
_COLOURS = ("red", "green", "blue", "yellow", "purple", "white", "black", "brown", "grey")
_SPOTS_ZH = ("东门", "西门", "南门", "北门", "上层", "下层", "左边", "右边")
_STORES_ZH = ("仓库", "书店", "车站", "食堂", "花园", "商店", "教室", "工厂")


def _listed(draw: Draw, room: int) -> Dialogue:
    """A list of small facts, each a key of two parts and a value."""
    kind = draw.pick((_codes, _colours, _telephones))
    turns = draw.number(1, min(_MOST_TURNS, room // 48))
    count = draw.number(2, max(2, min(96, (room - turns * _TURN_TOKENS) // 16)))
    opening, facts = kind(draw, count)
    asked = draw.several(facts, min(turns, len(facts)))
    text = draw.pick(("\n", " ")).join(stated for stated, _, _ in facts)
    (_, question, answer), *more = asked
    messages: list[Message] = [*_turn(f"{opening}\n\n{text}\n\n{question}", answer)]
    for _, question, answer in more:
        messages += _turn(question, answer)
    return Dialogue(messages)


Facts = list[tuple[str, str, str]]
"""How a fact is stated, asked for and answered."""


def _pairs(draw: Draw, first: Sequence[str], second: Sequence[str], count: int) -> list[list[str]]:
    pairs = [[a, b] for a in first for b in second]
    return draw.several(pairs, min(count, len(pairs)))


def _codes(draw: Draw, count: int) -> tuple[str, Facts]:
    facts: Facts = []
    for owner, thing in _pairs(draw, _OWNERS, _OWNED, count):
        code = str(draw.number(100, 9_999))
        stated = f"The {thing} of {owner} has the code {code}."
        facts.append((stated, f"Which code has the {thing} of {owner}?", stated))
    return "Here are some codes.", facts


def _colours(draw: Draw, count: int) -> tuple[str, Facts]:
    facts: Facts = []
    whole = bool(draw.number(0, 1))
    for owner, thing in _pairs(draw, _OWNERS, _OWNED, count):
        colour = draw.pick(_COLOURS)
        asked = f"Which colour is the {thing} of {owner}?"
        said = f"The {thing} of {owner} is {colour}."
        facts.append((said, asked, said) if whole else (said, f"{asked} One word.", colour))
    return "Remember who has what.", facts


def _telephones(draw: Draw, count: int) -> tuple[str, Facts]:
    facts: Facts = []
    whole = bool(draw.number(0, 1))
    for spot, store in _pairs(draw, _SPOTS_ZH, _STORES_ZH, count):
        number = str(draw.number(10_000, 99_999))
        stated = f"{spot}{store}的电话是{number}。"
        asked = f"{spot}{store}的电话是多少？"
        facts.append((stated, asked, stated) if whole else (stated, f"{asked}只回答号码。", number))
    return "请读下面的资料。", facts


def _turn(asked: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
