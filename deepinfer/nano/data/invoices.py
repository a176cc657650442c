"""Invoices and receipts to read into JSON: those of the question set, and other layouts.

Amounts are written with two decimals, so that reading one is copying its digits. Knows nothing of
tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deepinfer.eval.draw import Draw
from deepinfer.eval.sets import invoice
from deepinfer.nano.data.dialogue import Dialogue
from deepinfer.nano.data.seeds import training_seed

_OWN = 3  # one in so many is not from the question set's templates


def written(value: object) -> str:
    """JSON as the model writes it: one line, blanks after commas and colons, floats as money."""
    if isinstance(value, Mapping):
        items = (f"{json.dumps(key)}: {written(inner)}" for key, inner in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return f"{value:.2f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def dialogue(draw: Draw) -> Dialogue:
    """A paper and what it says."""
    if draw.number(1, _OWN) == 1:
        return _own(draw)
    (question,) = invoice.questions(1, training_seed(draw))
    schema = question.schema if draw.number(0, 1) else None
    return _asked(question.messages[0]["content"], question.target, schema)


def _asked(content: str, data: object, schema: Mapping[str, Any] | None) -> Dialogue:
    said = {"role": "assistant", "content": written(data)}
    return Dialogue([{"role": "user", "content": content}, said], schema=schema)


_FIRST = ("Alder", "Bright", "Cedar", "Delta", "Echo", "Falcon", "Granite", "Hazel", "Iris",
          "Juniper", "Kestrel", "Linden", "Maple", "Nova", "Orchard", "Quartz")  # fmt: skip
_TRADE = ("Supplies", "Foods", "Textiles", "Hardware", "Paper", "Garden", "Electric", "Music",
          "Travel", "Bicycles", "Optics", "Furniture")  # fmt: skip
_LEGAL = ("", " Ltd", " GmbH", " Inc.", " & Sons", " Co.")
_GOODS = ("blue pen", "cable 2 m", "printer paper", "glass jar", "wool scarf", "light bulb",
          "paint brush", "green tea", "rice 5 kg", "door handle", "battery AA", "honey",
          "travel guide", "cotton shirt", "bath towel", "coffee mug")  # fmt: skip
_FIRST_ZH = ("和平", "金山", "海天", "白云", "红星", "友谊", "大江", "春风")
_TRADE_ZH = ("超市", "书店", "服装店", "电器行", "食品公司", "文具店", "花店")
_GOODS_ZH = ("钢笔", "大米", "灯泡", "花茶", "衬衫", "电池", "纸杯", "香皂", "蜂蜜", "剪刀")
_CODES = ("USD", "EUR", "GBP", "CHF", "SEK", "JPY", "CNY")


def _own(draw: Draw) -> Dialogue:
    """Other shops, goods and layouts, and questions for a part of what a paper says."""
    chinese = draw.number(1, 3) == 1
    paper = _paper(draw, chinese=chinese)
    shown = (_note if draw.number(0, 1) else _table)(paper, chinese=chinese)
    keys = draw.several(sorted(paper), draw.number(1, len(paper)))
    data = {key: paper[key] for key in keys}
    names = ("、" if chinese else ", ").join(keys)
    form = draw.pick(
        ("从下面的单据中提取{}，用JSON回答。", "把这张单据读成JSON，键为{}。")
        if chinese
        else ("Extract {} from this bill as JSON.", "Read this bill into JSON with the keys {}.")
    )
    return _asked(f"{form.format(names)}\n\n{shown}", data, None)


def _paper(draw: Draw, *, chinese: bool) -> dict[str, Any]:
    lines, total = [], 0
    for item in draw.several(_GOODS_ZH if chinese else _GOODS, draw.number(1, 4)):
        quantity, price = draw.number(1, 20), draw.number(10, 9_999)
        total += quantity * price
        lines.append({"item": item, "quantity": quantity, "price": price / 100})
    seller = (
        draw.pick(_FIRST_ZH) + draw.pick(_TRADE_ZH)
        if chinese
        else f"{draw.pick(_FIRST)} {draw.pick(_TRADE)}{draw.pick(_LEGAL)}"
    )
    return {
        "seller": seller,
        "number": f"{draw.pick('CDGHJLMNPT')}{draw.pick('-/')}{draw.number(100, 999_999)}",
        "date": f"{draw.number(2020, 2029)}-{draw.number(1, 12):02}-{draw.number(1, 28):02}",
        "currency": "CNY" if chinese else draw.pick(_CODES),
        "lines": lines,
        "total": total / 100,
    }


def _table(paper: Mapping[str, Any], *, chinese: bool) -> str:
    """Goods in a Markdown table below the head."""
    head = ("品名", "数量", "单价") if chinese else ("item", "quantity", "price")
    bar = "| {} | {} | {} |"
    rows = [bar.format(x["item"], x["quantity"], f"{x['price']:.2f}") for x in paper["lines"]]
    total = "总计" if chinese else "Total due"
    return "\n".join(
        [
            f"# {paper['seller']}",
            f"{paper['date']} {paper['number']}",
            bar.format(*head),
            "|---|---|---|",
            *rows,
            f"{total}: {paper['currency']} {paper['total']:.2f}",
        ]
    )


def _note(paper: Mapping[str, Any], *, chinese: bool) -> str:
    """A letter in sentences."""
    parts = [f"{x['item']} ({x['quantity']} x {x['price']:.2f})" for x in paper["lines"]]
    if chinese:
        return (
            f"{paper['seller']}，{paper['date']}，单号{paper['number']}：您购买了"
            f"{'、'.join(parts)}，共计{paper['total']:.2f} {paper['currency']}。"
        )
    return (
        f"Dear customer, on {paper['date']} you bought {', '.join(parts)}. Please pay "
        f"{paper['total']:.2f} {paper['currency']} and state the number {paper['number']}. "
        f"{paper['seller']}"
    )
