"""Function calls: the right function with the right arguments, and answers from results.

Made from a seed. Four kinds: one call, two calls at once, an answer from a function's result, and
a question that needs no call. Knows nothing of how calls are marked up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from deepinfer.eval.draw import Draw
from deepinfer.eval.extract import after_thinking, json_object, same_json
from deepinfer.eval.question import Call, Fields, Question, Reply, Verdict, right, wrong

_CITIES = (
    "Oslo",
    "Lima",
    "Cairo",
    "Hanoi",
    "Quito",
    "Dakar",
    "Riga",
    "Perth",
    "北京",
    "上海",
    "成都",
)
_PEOPLE = ("Ada", "Hugo", "Mei", "Noor", "Tess", "Omar", "李华", "王芳")
_CURRENCIES = ("USD", "EUR", "CNY", "JPY", "GBP")
_COLOURS = ("red", "green", "blue", "yellow", "purple")


class _Use(NamedTuple):
    """A request that one function serves, and a result it may give."""

    asked: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    says: str


class _Tool(NamedTuple):
    """A function and how a request for it is drawn."""

    name: str
    description: str
    properties: dict[str, Any]
    draw: Callable[[Draw], _Use]

    def definition(self) -> dict[str, Any]:
        parameters = {
            "type": "object",
            "properties": self.properties,
            "required": list(self.properties),
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def _weather(draw: Draw) -> _Use:
    city, day = draw.pick(_CITIES), draw.pick(("today", "tomorrow"))
    degrees = draw.number(-19, 39)
    return _Use(
        f"What will the temperature be in {city} {day}?",
        {"city": city, "day": day},
        {"degrees": degrees},
        str(degrees),
    )


def _convert(draw: Draw) -> _Use:
    first, second = draw.several(_CURRENCIES, 2)
    amount, result = draw.number(2, 999), draw.number(1_000, 9_999)
    return _Use(
        f"Convert {amount} {first} to {second}.",
        {"amount": amount, "from": first, "to": second},
        {"amount": result},
        str(result),
    )


def _light(draw: Draw) -> _Use:
    colour, level, on = draw.pick(_COLOURS), draw.number(1, 100), draw.pick((True, False))
    state = "on" if on else "off"
    code = draw.number(100, 999)
    return _Use(
        f"Set the lamp to {colour} at {level} percent, and switch its timer {state}. Tell me the "
        "confirmation code.",
        {"colour": colour, "percent": level, "timer": on},
        {"code": code},
        str(code),
    )


def _birthday(draw: Draw) -> _Use:
    name, day = draw.pick(_PEOPLE), draw.number(1, 28)
    return _Use(
        f"On which day of May is the birthday of {name}?",
        {"name": name},
        {"month": "May", "day": day},
        str(day),
    )


def _stock(draw: Draw) -> _Use:
    number, count = f"P-{draw.number(1000, 9999)}", draw.number(0, 99)
    return _Use(
        f"仓库里还有多少件编号为 {number} 的货？", {"number": number}, {"count": count}, str(count)
    )


_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}
_TOOLS = (
    _Tool("get_weather", "Forecast for a city", {
        "city": _STRING, "day": {"type": "string", "enum": ["today", "tomorrow"]}}, _weather),
    _Tool("convert_money", "Convert between currencies", {
        "amount": _INTEGER, "from": _STRING, "to": _STRING}, _convert),
    _Tool("set_lamp", "Colour, brightness and timer of the lamp", {
        "colour": _STRING, "percent": _INTEGER, "timer": {"type": "boolean"}}, _light),
    _Tool("find_birthday", "Birthday of a person", {"name": _STRING}, _birthday),
    _Tool("count_stock", "查询一种货物的库存数量", {"number": _STRING}, _stock),
)  # fmt: skip
_NO_CALL = (
    "Hello! How are you?",
    "Thank you, that was all.",
    "Say good morning in French.",
    "你好！请用一句话介绍你自己。",
    "What is two plus two?",
)


def questions(count: int, seed: int) -> list[Question]:
    """`count` questions; question i is the same for every count."""
    return [_question(Draw("tools", seed, i), str(i)) for i in range(count)]


def _question(draw: Draw, key: str) -> Question:
    offered = draw.several(_TOOLS, draw.number(2, len(_TOOLS)))
    tools = [tool.definition() for tool in offered]
    kind = draw.pick(("one call", "one call", "two calls", "answer", "no call"))
    facts = {"group": kind}
    if kind == "no call":
        messages = [{"role": "user", "content": draw.pick(_NO_CALL)}]
        return Question(key, messages, {"calls": []}, tools=tools, facts=facts)
    tool = offered[0]
    uses = [tool.draw(draw)]
    if kind == "two calls":
        other = tool.draw(draw)
        while other.arguments == uses[0].arguments:
            other = tool.draw(draw)
        uses.append(other)
    shown = draw.several(tools, len(tools))  # the right one must not always stand first
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": " ".join(use.asked for use in uses)}
    ]
    if kind == "answer":
        messages += _exchange(tool, uses[0])
        return Question(key, messages, {"says": uses[0].says}, tools=shown, facts=facts)
    calls = [{"name": tool.name, "arguments": use.arguments} for use in uses]
    return Question(key, messages, {"calls": calls}, tools=shown, facts=facts)


def _exchange(tool: _Tool, use: _Use) -> list[dict[str, Any]]:
    """A call that was made and what it gave."""
    function = {"name": tool.name, "arguments": json.dumps(use.arguments, ensure_ascii=False)}
    call = {"id": "call_1", "type": "function", "function": function}
    result = json.dumps(use.result)
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]


def score(target: Any, facts: Fields, reply: Reply) -> Verdict:
    """Right if exactly the expected calls were made, in any order, or the result is stated.

    The share counts expected calls that were made; one too many keeps the answer from being
    right.

    Args:
        target: `{"calls": [{"name", "arguments"}]}` or `{"says": text}`.
        facts: not used.
        reply: what came back.
    """
    del facts
    if "says" in target:
        return _said(target["says"], reply)
    made = [_parsed(call) for call in reply.calls]
    answer = "; ".join(f"{call.name}({call.arguments})" for call in reply.calls) or None
    left = list(made)
    for call in target["calls"]:
        match = next((other for other in left if other and same_json(other, call)), None)
        if match is not None:
            left.remove(match)
    hits, expected = len(made) - len(left), len(target["calls"])
    if hits == expected and not left:
        if not made and not after_thinking(reply.content):
            return wrong("neither a call nor an answer")
        return right(answer or "no call")
    if None in made:
        reason = "arguments that are no JSON object"
    else:
        reason = f"{hits} of {expected} expected calls, {len(left)} others"
    return wrong(reason, answer, share=hits / (expected + len(left)))


def _parsed(call: Call) -> dict[str, Any] | None:
    text = call.arguments.strip()
    arguments = json_object(text) if text.startswith("{") and text.endswith("}") else None
    return None if arguments is None else {"name": call.name, "arguments": arguments}


def _said(says: str, reply: Reply) -> Verdict:
    if reply.calls:
        return wrong("a call instead of an answer")
    text = after_thinking(reply.content).replace("\N{MINUS SIGN}", "-").replace(",", "")
    places = [p for p in range(len(text)) if text.startswith(says, p)]
    for place in places:
        before, after = text[place - 1 : place], text[place + len(says) : place + len(says) + 1]
        if not (before.isdigit() or after.isdigit() or (before == "-" and says[0] != "-")):
            return right(says)
    return wrong("the result is not stated", text[:80])
