"""Invoices and receipts to read into JSON, in English and Chinese, made from a seed.

Knows nothing of grammars: whether the schema is enforced is up to the back-end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deepinfer.eval.draw import Draw
from deepinfer.eval.extract import after_thinking, json_object, same_json
from deepinfer.eval.question import Fields, Question, Reply, Verdict, right, wrong

_TEXT, _AMOUNT = {"type": "string"}, {"type": "number"}


def _object(properties: Fields) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


_LINE = {"item": _TEXT, "quantity": {"type": "integer"}, "unit_price": _AMOUNT, "amount": _AMOUNT}
SCHEMA = _object(
    {
        "seller": _TEXT,
        "number": _TEXT,
        "date": _TEXT,
        "currency": _TEXT,
        "lines": {"type": "array", "items": _object(_LINE)},
        "subtotal": _AMOUNT,
        "tax": _AMOUNT,
        "total": _AMOUNT,
    }
)
"""What is asked for: dates as YYYY-MM-DD, the currency as a code of three letters."""

_SELLERS = {
    "en": (
        "Harbour Tools Ltd", "Green Valley Bakery", "Northern Light Books", "Oak & Iron GmbH",
        "Riverside Garage", "Blue Door Stationery", "Summit Outdoor Co.", "Old Mill Coffee",
    ),
    "zh": ("东湖文具店", "青山茶叶公司", "长江五金行", "明月书店", "南门水果店", "新星电子公司"),
}  # fmt: skip
_ITEMS = {
    "en": (
        "desk lamp", "steel bolt", "notebook A5", "coffee beans 1 kg", "garden hose", "wall clock",
        "paper box", "oil filter", "hiking socks", "ink cartridge", "bread knife", "tea towel",
    ),
    "zh": ("铅笔", "绿茶", "螺丝刀", "台灯", "苹果", "充电器", "笔记本", "水杯", "毛巾", "雨伞"),
}  # fmt: skip
_CURRENCIES = {"en": ("USD", "EUR", "GBP"), "zh": ("CNY",)}
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_ASKED = {
    "en": "Read this {paper} into JSON with the keys seller, number, date (YYYY-MM-DD), currency "
    "(three letters), lines (each with item, quantity, unit_price, amount), subtotal, tax and "
    "total. Reply with the JSON object only.",
    "zh": "请把下面的{paper}读成JSON，键为seller、number、date（YYYY-MM-DD）、"
    "currency（三个字母）、lines（每行有item、quantity、unit_price、amount）、subtotal、tax和total。只回答JSON对象。",
}
_WORDS = {
    "en": {"no": "No.", "date": "Date", "sub": "Subtotal", "tax": "Tax", "sum": "Total"},
    "zh": {"no": "编号", "date": "日期", "sub": "小计", "tax": "税额", "sum": "合计"},
}


def questions(count: int, seed: int) -> list[Question]:
    """`count` questions; question i is the same for every count."""
    return [_question(Draw("invoice", seed, i), i) for i in range(count)]


def _question(draw: Draw, number: int) -> Question:
    language = draw.pick(("en", "en", "zh"))
    receipt = draw.pick((False, False, True))
    data = _data(draw, language)
    paper = {"en": ("invoice", "receipt"), "zh": ("发票", "收据")}[language][receipt]
    shown = (_receipt if receipt else _invoice)(draw, data, language, paper)
    content = f"{_ASKED[language].format(paper=paper)}\n\n{shown}"
    facts = {"group": f"{'receipt' if receipt else 'invoice'}, {language}"}
    message = {"role": "user", "content": content}
    return Question(str(number), [message], data, schema=SCHEMA, facts=facts)


def _data(draw: Draw, language: str) -> dict[str, Any]:
    """What the paper says; amounts are whole cents before they are divided by 100."""
    lines, subtotal = [], 0
    for item in draw.several(_ITEMS[language], draw.number(1, 4)):
        quantity, price = draw.number(1, 12), draw.number(10, 9_999)
        subtotal += quantity * price
        amounts = {"unit_price": price / 100, "amount": quantity * price / 100}
        lines.append({"item": item, "quantity": quantity, **amounts})
    tax = (subtotal * draw.pick((0, 5, 7, 13, 19, 20)) + 50) // 100
    day = f"{draw.number(2023, 2027)}-{draw.number(1, 12):02}-{draw.number(1, 28):02}"
    return {
        "seller": draw.pick(_SELLERS[language]),
        "number": f"{draw.pick('ABFKRS')}{draw.pick(('', '-'))}{draw.number(1000, 99_999)}",
        "date": day,
        "currency": draw.pick(_CURRENCIES[language]),
        "lines": lines,
        "subtotal": subtotal / 100,
        "tax": tax / 100,
        "total": (subtotal + tax) / 100,
    }


def _invoice(draw: Draw, data: dict[str, Any], language: str, paper: str) -> str:
    """A table between a head and a foot."""
    words, bar = _WORDS[language], draw.pick((" | ", "  ", "\t"))
    rows = [
        bar.join([line["item"], str(line["quantity"]), _money(line["unit_price"]),
                  _money(line["amount"])])
        for line in data["lines"]
    ]  # fmt: skip
    return "\n".join(
        [
            f"{data['seller']}",
            f"{paper.capitalize()} {words['no']} {data['number']}",
            f"{words['date']}: {_day(draw, data['date'], language)}",
            "",
            *rows,
            "",
            f"{words['sub']}: {_money(data['subtotal'])} {data['currency']}",
            f"{words['tax']}: {_money(data['tax'])} {data['currency']}",
            f"{words['sum']}: {_money(data['total'])} {data['currency']}",
        ]
    )


def _receipt(draw: Draw, data: dict[str, Any], language: str, paper: str) -> str:
    """Quantity times price, the way a till prints it."""
    words = _WORDS[language]
    rows = [
        f"{line['quantity']} x {line['item']} @ {_money(line['unit_price'])} = "
        f"{_money(line['amount'])}"
        for line in data["lines"]
    ]
    foot = "  ".join(
        f"{words[word]} {_money(data[key])}"
        for word, key in (("sub", "subtotal"), ("tax", "tax"), ("sum", "total"))
    )
    head = f"*** {data['seller']} ***\n{_day(draw, data['date'], language)}  "
    return "\n".join([head + f"{paper} {data['number']}", *rows, f"{foot} ({data['currency']})"])


def _money(amount: float) -> str:
    return f"{amount:,.2f}"


def _day(draw: Draw, date: str, language: str) -> str:
    """A date as people write it."""
    year, month, day = (int(part) for part in date.split("-"))
    if language == "zh":
        return draw.pick((date, f"{year}年{month}月{day}日"))
    return draw.pick((date, f"{day} {_MONTHS[month - 1]} {year}", f"{year}/{month:02}/{day:02}"))


def score(target: Any, facts: Fields, reply: Reply) -> Verdict:
    """Right if the JSON object equals the target; the share is that of equal fields.

    Numbers are compared by value, texts exactly. A key or line too many is no field, but keeps
    the answer from being right.

    Args:
        target: the object.
        facts: not used.
        reply: what came back.
    """
    del facts
    found = json_object(after_thinking(reply.content))
    if found is None:
        return wrong("no JSON object")
    if same_json(found, target):
        return right("all fields")
    wanted, given = dict(_leaves(target)), dict(_leaves(found))
    bad = [path for path, value in wanted.items() if not same_json(given.get(path), value)]
    more = [path for path in given if path not in wanted]
    reason = f"wrong: {', '.join(bad)}" if bad else f"too much: {', '.join(more)}"
    # An object that differs only in what it has too much must not count as whole.
    fields = len(wanted) + (not bad)
    return wrong(reason, None, share=(len(wanted) - len(bad)) / fields)


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no container, with its path; an empty container is a value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{place}]")
    else:
        yield path, value
