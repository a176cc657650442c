"""The text that the embedded model's tokenizer is trained on: our own, the same on every run.

Short pieces of prose, dialogue, code, tables and arithmetic, in English and Chinese, put together
from the lists below. It knows nothing of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def _words(text: str) -> list[str]:
    return text.split()


_PEOPLE = _words(
    "Ada Ben Clara Dmitri Elif Farid Greta Hugo Ines Jonas Kira Liam Mei Noor Oscar Priya Quinn "
    "Rosa Samuel Tess"
)
_PLACES = [
    "the harbour", "a small kitchen", "the old library", "the railway station", "a mountain hut",
    "the school garden", "the night market", "an empty theatre", "the river bank", "the café",
    "the observatory", "the repair shop", "the post office", "the orchard", "the museum",
    "the bakery", "a crowded bus", "the lighthouse", "the university", "a quiet village",
    "the laboratory", "the swimming pool", "the castle", "the airport", "the forest path",
]  # fmt: skip
_THINGS = [
    "a lantern", "the blue notebook", "two tickets", "a broken clock", "the recipe", "an umbrella",
    "the map", "a loaf of bread", "the telescope", "a wooden box", "the letter", "some coffee",
    "the violin", "a bicycle", "three oranges", "the key", "a radio", "the drawing", "a photograph",
    "the newspaper", "a silver spoon", "the green blanket", "some chalk", "a hammer", "the piano",
    "a basket of apples", "the microscope", "an envelope", "the dictionary", "a pair of gloves",
]  # fmt: skip
_DEEDS = [
    "carried", "found", "forgot", "repaired", "borrowed", "painted", "measured", "sold", "hid",
    "described", "weighed", "returned", "counted", "cleaned", "lost", "finished", "bought",
    "polished", "noticed", "examined", "delivered", "collected", "protected", "recognised",
]  # fmt: skip
_TIMES = [
    "Early in the morning", "After the rain", "On Tuesday", "Last winter", "Before lunch",
    "When the lights went out", "At the end of the summer", "Every evening", "Ten years ago",
    "While the others were sleeping", "As soon as the train had left", "Without a word",
]  # fmt: skip
_REASONS = [
    "because nobody else wanted to do it", "although it was already late", "and smiled",
    "so that the children could see it", "but did not say why", "before anyone could ask",
    "which surprised all of us", "as if nothing had happened", "until the shop closed",
    "and wrote the number down", "since the weather was good", "for the second time",
]  # fmt: skip
_QUESTIONS = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("How many days are there in a week?", "There are seven days in a week."),
    ("Why is the sky blue?", "Air scatters short waves of light more strongly than long ones."),
    ("Can you write a short poem about the sea?", "Grey water, slow hills of salt and wind."),
    ("Which is larger, a whale or a mouse?", "A whale is much larger than a mouse."),
    ("How does a bicycle stay upright?", "The rider steers a little into every fall."),
    ("What should I cook tonight?", "Try rice with beans, garlic, tomatoes and a fresh salad."),
    ("Where does the river end?", "It ends in the sea, like most rivers."),
    ("Who wrote this letter?", "I do not know; it is not signed."),
    ("Is seven a prime number?", "Yes, because only 1 and 7 divide it without a remainder."),
    ("How do I say thank you in Chinese?", "You say 谢谢 (xièxie)."),
    ("Please explain what a computer does.", "It follows simple instructions, very fast."),
]  # fmt: skip
_PROSE = [
    "Water boils at a lower temperature on a mountain than at the coast, because the air presses "
    "less on its surface. That is why soup takes longer to cook in a high hut.",
    "A good explanation begins with what the reader already knows. It adds one new thing at a "
    "time, gives an example, and says where the rule no longer holds.",
    "The first clocks had only one hand. People did not need minutes until trains began to leave "
    "on time, and then everyone needed them at once.",
    "Bees tell each other where flowers are by dancing. The angle of the dance shows the "
    "direction, and its length shows the distance.",
    "If you fold a sheet of paper in half ten times, it has one thousand and twenty-four layers. "
    "Nobody manages it by hand, for the last folds need more strength than the first.",
    "To learn a language, read what you like, listen every day, and do not be afraid of mistakes. "
    "Words that you use stay with you; words that you only look at do not.",
    "A program is a text for two readers: the machine that runs it and the person who changes it. "
    "The machine never complains about names, but the person does.",
    "The moon does not shine by itself. It reflects the light of the sun, and what we call its "
    "phases is only the part of the bright half that we can see.",
    "Thinking step by step helps: write down what is given, what is asked, and which facts connect "
    "them. Then check the answer by putting it back into the question.",
    "A library lends more than books: a warm room, a quiet table, and the advice of somebody who "
    "has read widely and likes to answer questions.",
    "Rivers carry sand and stones downhill. Where the water becomes slow it drops them again, and "
    "after a few thousand years there is new land, flat and fertile.",
    "To compare two measurements you need to know how exact each of them is. A difference smaller "
    "than the error is no difference at all.",
    "Bread needs four things: flour, water, salt and time. The time is what most people leave out.",
]
_WHO = _words("小明 老师 妈妈 他们 医生 邻居 学生 爷爷 工程师 我的朋友 司机 姐姐 科学家")
_WHEN = _words("今天早上 昨天晚上 每个星期天 下雨的时候 去年冬天 吃完饭以后 很久以前")
_WHERE = _words("在图书馆 在学校门口 在火车站 在厨房里 在山上 在河边 在办公室")
_WHAT = _words("看书 写信 学习中文 修理自行车 画画 喝茶 讨论问题 听音乐 做饭 计算结果 打电话 下棋")
_ENDINGS = [
    "。",
    "，大家都很高兴。",
    "，但是没有告诉别人。",
    "，因为天气很好。",
    "，你知道为什么吗？",
]
_CHINESE = [
    "问：一个星期有几天？答：一个星期有七天。",
    "人工智能可以帮助我们理解语言、翻译文章和解决问题。",
    "请一步一步地思考，然后给出最后的答案。",
    "水在一百度的时候沸腾，在零度的时候结冰。",
    "中国的首都是北京，法国的首都是巴黎。",
    "如果明天不下雨，我们就去公园散步。",
]
_NAMES = _words("total count items value result index line text token key row width limit")
_CALLS = _words("read write parse load save update find insert remove check compute print_all")
_ACCENTS = _words("naïve façade über señor crème brûlée Ångström jalapeño smörgåsbord piñata")


class Writer:
    """Draws from the lists with a generator of its own; each method gives a piece of text."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def number(self, below: int) -> int:
        """0 <= it < below."""
        # Of the generator's methods only `random` promises the same numbers in every Python.
        return int(self._random.random() * below)

    def pick(self, options: Sequence[str]) -> str:
        """One of the options."""
        return options[self.number(len(options))]

    def sentence(self) -> str:
        """Somebody did something."""
        who, deed, thing = self.pick(_PEOPLE), self.pick(_DEEDS), self.pick(_THINGS)
        where, reason, time = self.pick(_PLACES), self.pick(_REASONS), self.pick(_TIMES)
        forms = (
            f"{time}, {who} {deed} {thing} near {where} {reason}.",
            f"{who} {deed} {thing} {reason}.",
            f'"Have you seen {thing}?" asked {who}. "It was in {where}!"',
            f"{time} {where} was full of people, and {who} {deed} {thing}.",
        )
        return self.pick(forms)

    def story(self) -> str:
        """Three to five sentences."""
        return " ".join(self.sentence() for _ in range(3 + self.number(3)))

    def fact(self) -> str:
        """A short explanation, English or Chinese."""
        return self.pick([*_PROSE, *_CHINESE])

    def dialogue(self) -> str:
        """A question and its answer."""
        question, answer = _QUESTIONS[self.number(len(_QUESTIONS))]
        return f"Question: {question}\nAnswer: {answer}"

    def chinese(self) -> str:
        """Three sentences in Chinese."""
        parts = [
            self.pick(_WHEN) + self.pick(_WHO) + self.pick(_WHERE) + self.pick(_WHAT)
            + self.pick(_ENDINGS)
            for _ in range(2)
        ]  # fmt: skip
        return "".join([*parts, self.pick(_CHINESE)])

    def arithmetic(self) -> str:
        """Twelve lines of true arithmetic."""
        lines = []
        for _ in range(4):
            a, b = self.number(100), 1 + self.number(99)
            lines += [f"{a} + {b} = {a + b}", f"{a} * {b} = {a * b}", f"{a} - {b} = {a - b}"]
        return "\n".join(lines)

    def python(self) -> str:
        """A function."""
        name, other, call = self.pick(_NAMES), self.pick(_NAMES), self.pick(_CALLS)
        return (
            f"def {call}_{name}({other}, limit={self.number(64)}):\n"
            f'    """Return the {name} of each {other}."""\n'
            f"    {name}s = []\n"
            f"    for i in range(len({other})):\n"
            f"        if {other}[i] is not None and i < limit:\n"
            f"            {name}s.append({self.pick(_CALLS)}({other}[i]))\n"
            f"    return {name}s"
        )

    def record(self) -> str:
        """A JSON object."""
        return (
            f'{{"name": "{self.pick(_PEOPLE)}", "{self.pick(_NAMES)}": {self.number(1000)}, '
            f'"place": "{self.pick(_PLACES)}", "done": {self.pick(["true", "false", "null"])}}}'
        )

    def table(self) -> str:
        """A Markdown table of three rows."""
        rows = [f"| {self.pick(_PEOPLE)} | {self.number(10000)} |" for _ in range(3)]
        return "\n".join(["| name | value |", "|---|---|", *rows, f"- {self.pick(_ACCENTS)}"])


def corpus(seed: int, rounds: int = 52) -> str:
    """The training text.

    Args:
        seed: changes which pieces are drawn, not which lists they come from.
        rounds: passes over the kinds of text; one gives about 1.1 kB.

    Returns:
        Paragraphs divided by blank lines.
    """
    writer = Writer(seed)
    pieces = [*_PROSE, *_CHINESE]
    for _ in range(rounds):
        pieces += [
            writer.story(),
            writer.dialogue(),
            writer.chinese(),
            writer.arithmetic(),
            writer.python(),
            writer.record(),
            writer.table(),
        ]
    return "\n\n".join(pieces) + "\n"
