"""Tool calls: which function, with which arguments, and what its result says.

The tools of the question set, and others. Knows nothing of how calls are marked up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer.eval.draw import Draw
from deepinfer.eval.question import Question
from deepinfer.eval.sets import tools
from deepinfer.nano.data.dialogue import Dialogue, Message, calling
from deepinfer.nano.data.seeds import training_seed

_OWN = 3  # one in so many has tools that the question set has not
_MORE = 5  # further questions of the set in one conversation, at most
_THINKING = 6  # one in so many is answered with reasoning

_SMALL_TALK = {
    "Hello! How are you?": "Hello! I am well, thank you. How can I help you?",
    "Thank you, that was all.": "You are welcome. Have a good day!",
    "Say good morning in French.": 'Good morning in French is "bonjour".',
    "你好！请用一句话介绍你自己。": "你好！我是一个很小的语言模型，可以读单据、算数和查找信息。",
    "What is two plus two?": "Two plus two is four.",
}
_MORE_TALK = {
    "Hi there!": "Hi! How can I help you?",
    "Good evening.": "Good evening! What can I do for you?",
    "谢谢你！": "不客气！",
    "再见！": "再见，祝你愉快！",
    "Say thank you in Chinese.": "Thank you in Chinese is 谢谢.",
    "What is three plus four?": "Three plus four is seven.",
    "How many days are there in a week?": "There are seven days in a week.",
}


def dialogue(draw: Draw) -> Dialogue:
    """A conversation with tools."""
    made = _own(draw) if draw.number(1, _OWN) == 1 else _of_the_set(draw)
    return _reasoned(made) if draw.number(1, _THINKING) == 1 else made


def _of_the_set(draw: Draw) -> Dialogue:
    """Questions of the set, one after the other; where a call is made, its result may follow."""
    (question,) = tools.questions(1, training_seed(draw))
    messages, offered = _exchange(draw, question), list(question.tools)
    if draw.number(1, 3) == 1 or _waits(messages):
        return Dialogue(messages, tools=offered)
    for _ in range(draw.number(1, _MORE)):
        (question,) = tools.questions(1, training_seed(draw))
        messages += _exchange(draw, question)
        known = {_name(tool) for tool in offered}
        offered += [tool for tool in question.tools if _name(tool) not in known]
        if _waits(messages):
            break
    return Dialogue(messages, tools=draw.several(offered, len(offered)))


def _exchange(draw: Draw, question: Question) -> list[Message]:
    """A question of the set with the answer that it wants to read."""
    messages: list[Message] = list(question.messages)
    if "says" in question.target:
        call = messages[1]["tool_calls"][0]["function"]
        says = result_said(call["name"], json.loads(call["arguments"]), question.target["says"])
        return [*messages, _says(says)]
    calls = [(call["name"], call["arguments"]) for call in question.target["calls"]]
    if not calls:
        return [*messages, _says(_SMALL_TALK[messages[0]["content"]])]
    messages.append({"role": "assistant", "content": "", "tool_calls": calling(calls)})
    if draw.number(1, 4) == 1:
        return messages
    said: list[str] = []
    for number, (name, arguments) in enumerate(calls, 1):
        key, low, high = _RESULTS[name]
        value = draw.number(low, high)
        result = {"month": "May", key: value} if key == "day" else {key: value}
        messages.append(_result(number, result))
        said.append(result_said(name, arguments, str(value)))
    return [*messages, _says(" ".join(said))]


def _waits(messages: Sequence[Message]) -> bool:
    """Whether a call has no result yet, so that nobody can speak."""
    return bool(messages[-1].get("tool_calls"))


def _name(tool: Message) -> str:
    return tool["function"]["name"]


def _says(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _result(number: int, result: Mapping[str, Any]) -> Message:
    """What the call of a number gave."""
    content = json.dumps(result)
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


# Key and range of the results of the question set's tools.
_RESULTS = {
    "get_weather": ("degrees", -19, 39),
    "convert_money": ("amount", 1_000, 9_999),
    "set_lamp": ("code", 100, 999),
    "find_birthday": ("day", 1, 28),
    "count_stock": ("count", 0, 99),
}


def result_said(name: str, arguments: Mapping[str, Any], says: str) -> str:
    """The sentence for a result of one of the question set's tools."""
    match name:
        case "get_weather":
            return f"It will be {says} degrees in {arguments['city']} {arguments['day']}."
        case "convert_money":
            return f"{arguments['amount']} {arguments['from']} are {says} {arguments['to']}."
        case "set_lamp":
            return f"The lamp is set. The confirmation code is {says}."
        case "find_birthday":
            return f"The birthday of {arguments['name']} is on May {says}."
        case "count_stock":
            return f"编号为{arguments['number']}的货还有{says}件。"
        case _:
            return f"The result is {says}."


@dataclass(frozen=True)
class _Tool:
    """A function of ours.

    Attributes:
        name, description: as shown.
        fields: argument -> (JSON type, values to draw from, or a range).
        asked: the request, with the arguments in braces.
        result: key of the result, a range of numbers.
        said: the answer, with the result as {result}.
    """

    name: str
    description: str
    fields: Mapping[str, Sequence[str] | tuple[int, int]]
    asked: str
    result: tuple[str, int, int]
    said: str

    def definition(self) -> Message:
        properties = {
            key: {"type": "string" if isinstance(values[0], str) else "integer"}
            for key, values in self.fields.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def draw(self, draw: Draw) -> dict[str, Any]:
        return {
            key: draw.pick(values) if isinstance(values[0], str) else draw.number(*values)  # pyright: ignore[reportArgumentType]
            for key, values in self.fields.items()
        }


_TOWNS = ("Berlin", "Tokyo", "Rome", "Nairobi", "Sydney", "Paris", "Delhi", "Boston")
_TOWNS_ZH = ("广州", "西安", "杭州", "南京", "武汉")
_FRIENDS = ("Ben", "Clara", "Elif", "Ines", "Liam", "Rosa", "张伟", "刘洋")
_TOOLS = (
    _Tool("book_table", "Book a table in a restaurant",
          {"guests": (1, 12), "hour": (17, 22)}, "Book a table for {guests} at {hour} o'clock.",
          ("table", 1, 60), "Your table has the number {result}."),
    _Tool("next_train", "Minutes until the next train",
          {"from": _TOWNS, "to": _TOWNS}, "When does the next train from {from} to {to} leave?",
          ("minutes", 1, 180), "The next train to {to} leaves in {result} minutes."),
    _Tool("set_timer", "Start a timer",
          {"minutes": (1, 90), "label": ("tea", "eggs", "bread", "laundry")},
          "Start a timer of {minutes} minutes for the {label}.",
          ("id", 100, 999), "The timer for the {label} is running, its id is {result}."),
    _Tool("send_message", "Send a short message",
          {"to": _FRIENDS, "text": ("I am late", "Call me", "See you soon", "Happy birthday")},
          "Tell {to}: {text}.", ("message", 1000, 9999), "Message {result} was sent to {to}."),
    _Tool("air_quality", "查询城市的空气质量指数",
          {"city": _TOWNS_ZH}, "{city}今天的空气质量怎么样？", ("index", 10, 300),
          "{city}今天的空气质量指数是{result}。"),
    _Tool("find_room", "Find a free meeting room",
          {"people": (2, 40), "floor": (1, 9)},
          "I need a room for {people} people on floor {floor}.",
          ("room", 100, 999), "Room {result} is free."),
    _Tool("exchange_rate", "Units of a currency for one euro",
          {"currency": ("USD", "GBP", "CNY", "SEK", "CHF")},
          "How many {currency} do I get for a euro?",
          ("cents", 50, 999), "You get {result} hundredths of a {currency}."),
    _Tool("order_taxi", "叫一辆出租车",
          {"from": _TOWNS_ZH, "passengers": (1, 4)}, "请在{from}叫一辆出租车，{passengers}个人。",
          ("minutes", 2, 30), "出租车{result}分钟后到。"),
)  # fmt: skip


def _own(draw: Draw) -> Dialogue:
    """A call, its result and what is said about it, or small talk."""
    offered = draw.several(_TOOLS, draw.number(1, 4))
    shown = [tool.definition() for tool in draw.several(offered, len(offered))]
    if draw.number(1, 6) == 1:
        asked, answer = draw.pick(list({**_SMALL_TALK, **_MORE_TALK}.items()))
        return Dialogue([_user(asked), _says(answer)], tools=shown)
    tool = offered[0]
    arguments = tool.draw(draw)
    call = calling([(tool.name, arguments)])
    key, low, high = tool.result
    result = draw.number(low, high)
    messages: list[Message] = [
        _user(tool.asked.format(**arguments)),
        {"role": "assistant", "content": "", "tool_calls": call},
        _result(1, {key: result}),
        _says(tool.said.format(result=result, **arguments)),
    ]
    return Dialogue(messages, tools=shown)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _reasoned(made: Dialogue) -> Dialogue:
    """The same with a thought before every answer."""
    messages = [
        {**message, "reasoning_content": _thought(message)}
        if message["role"] == "assistant"
        else message
        for message in made.messages
    ]
    return Dialogue(messages, tools=made.tools, thinking=True)


def _thought(message: Message) -> str:
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    if calls:
        return f"This needs {' and '.join(calls)}."
    return "I can answer this now."
