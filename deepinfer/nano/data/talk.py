"""Small talk and plain text: short answers to simple questions, stories, code, tables.

All of it is ours. Knows nothing of tokens.
"""

from __future__ import annotations

from deepinfer.eval.draw import Draw
from deepinfer.nano.corpus import Writer
from deepinfer.nano.data.dialogue import Dialogue, Message, with_system

_THINKING = 4  # one in so many is answered with reasoning
_SYSTEM = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a small model that answers in one sentence.",
    "你是一个乐于助人的助手。",
)

_CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Norway": "Oslo", "Japan": "Tokyo",
    "China": "Beijing", "Egypt": "Cairo", "Peru": "Lima", "Kenya": "Nairobi", "Cuba": "Havana",
    "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw", "Portugal": "Lisbon",
    "Ireland": "Dublin", "Hungary": "Budapest", "Finland": "Helsinki", "Latvia": "Riga",
    "Germany": "Berlin", "Sweden": "Stockholm", "Chile": "Santiago", "Thailand": "Bangkok",
}  # fmt: skip
_CAPITALS_ZH = {"中国": "北京", "法国": "巴黎", "日本": "东京", "德国": "柏林", "英国": "伦敦",
                "俄罗斯": "莫斯科", "意大利": "罗马", "西班牙": "马德里"}  # fmt: skip
_WORDS_ZH = {
    "water": "水", "tea": "茶", "book": "书", "apple": "苹果", "train": "火车", "school": "学校",
    "friend": "朋友", "teacher": "老师", "red": "红色", "blue": "蓝色", "today": "今天",
    "tomorrow": "明天", "thank you": "谢谢", "good morning": "早上好", "goodbye": "再见",
    "mountain": "山", "river": "河", "moon": "月亮", "rice": "米饭", "music": "音乐",
}  # fmt: skip
_OPPOSITES = {"hot": "cold", "big": "small", "old": "new", "fast": "slow", "light": "dark",
              "open": "closed", "high": "low", "early": "late", "full": "empty"}  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SAID = {
    "Hello!": "Hello! How can I help you?",
    "Hi, who are you?": "I am nano, a very small language model. I read invoices, do sums, call "
    "tools and look things up in long texts.",
    "What can you do?": "I can read invoices and receipts into JSON, work out sums, call tools, "
    "and look up facts in a long text.",
    "Why is the sky blue?": "Air scatters short waves of light more strongly than long ones.",
    "How does a bicycle stay upright?": "The rider steers a little into every fall.",
    "What is a prime number?": "A whole number above 1 that only 1 and itself divide.",
    "Tell me a joke.": "Why did the clock go to school? It wanted to be on time.",
    "What is the sun?": "The sun is a star; it gives us light and warmth.",
    "How do I make tea?": "Boil water, pour it over the leaves, and wait three minutes.",
    "Thank you!": "You are welcome.",
    "Goodbye!": "Goodbye, and have a good day!",
    "你好！": "你好！有什么可以帮你？",
    "你是谁？": "我是nano，一个很小的语言模型。",
    "你会做什么？": "我会读发票、做算术、调用工具，也会在长文章里查找信息。",
    "谢谢！": "不客气。",
    "水在多少度的时候沸腾？": "水在一百度的时候沸腾。",
    "一个星期有几天？": "一个星期有七天。",
    "为什么要睡觉？": "睡觉让身体和大脑休息。",
}


def dialogue(draw: Draw) -> Dialogue:
    """A few turns of small talk, sometimes under a system message."""
    thinking = draw.number(1, _THINKING) == 1
    messages: list[Message] = []
    for _ in range(1 if thinking else draw.number(1, 4)):
        asked, answer, subject = draw.pick(_KINDS)(draw)
        messages.append({"role": "user", "content": asked})
        said = {"role": "assistant", "content": answer}
        if thinking:
            said["reasoning_content"] = f"The question is about {subject}. I know the answer."
        messages.append(said)
    made = Dialogue(messages, thinking=thinking, effort=_effort(draw) if thinking else None)
    return with_system(made, draw.pick(_SYSTEM)) if draw.number(1, 5) == 1 else made


def _effort(draw: Draw) -> str | None:
    return draw.pick((None, "low", "high", "max"))


def _said(draw: Draw) -> tuple[str, str, str]:
    asked, answer = draw.pick(list(_SAID.items()))
    return asked, answer, "everyday things"


def _capital(draw: Draw) -> tuple[str, str, str]:
    if draw.number(1, 3) == 1:
        country, city = draw.pick(list(_CAPITALS_ZH.items()))
        return f"{country}的首都是哪里？", f"{country}的首都是{city}。", "a capital"
    country, city = draw.pick(list(_CAPITALS.items()))
    return f"What is the capital of {country}?", f"The capital of {country} is {city}.", "a capital"


def _word(draw: Draw) -> tuple[str, str, str]:
    english, chinese = draw.pick(list(_WORDS_ZH.items()))
    if draw.number(0, 1):
        return f"How do I say {english} in Chinese?", f"You say {chinese}.", "a translation"
    return f"“{chinese}”用英语怎么说？", f"“{chinese}”的英语是{english}。", "a translation"


def _opposite(draw: Draw) -> tuple[str, str, str]:
    word, other = draw.pick(list(_OPPOSITES.items()))
    if draw.number(0, 1):
        word, other = other, word
    return f"What is the opposite of {word}?", f"The opposite of {word} is {other}.", "a word"


def _day(draw: Draw) -> tuple[str, str, str]:
    today = draw.number(0, 6)
    word, step = draw.pick((("after", 1), ("before", -1)))
    answer = _DAYS[(today + step) % 7]
    return (
        f"Which day comes {word} {_DAYS[today]}?",
        f"{answer} comes {word} {_DAYS[today]}.",
        "days",
    )


def _count(draw: Draw) -> tuple[str, str, str]:
    first = draw.number(1, 20)
    last = first + draw.number(2, 9)
    numbers = ", ".join(map(str, range(first, last + 1)))
    return f"Count from {first} to {last}.", f"{numbers}.", "counting"


def _sorted(draw: Draw) -> tuple[str, str, str]:
    numbers = [draw.number(1, 99) for _ in range(draw.number(3, 5))]
    shown, ordered = (", ".join(map(str, each)) for each in (numbers, sorted(numbers)))
    return f"Sort these numbers: {shown}.", f"{ordered}.", "an order"


def _repeated(draw: Draw) -> tuple[str, str, str]:
    sentence = Writer(draw.number(0, 1 << 40)).sentence()
    return f"Repeat this sentence: {sentence}", sentence, "a sentence"


_KINDS = (_said, _said, _capital, _word, _opposite, _day, _count, _sorted, _repeated)


def text(draw: Draw) -> str:
    """A few pieces of plain text, divided by blank lines."""
    writer = Writer(draw.number(0, 1 << 40))
    kinds = (
        writer.story, writer.story, writer.fact, writer.fact, writer.chinese, writer.dialogue,
        writer.python, writer.record, writer.table,
    )  # fmt: skip
    return "\n\n".join(draw.pick(kinds)() for _ in range(draw.number(1, 4)))
