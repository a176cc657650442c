"""Forty schemas with more structure: medium and hard ones, with references and recursion.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.bench.schemas.build import (
    ANY,
    FLAG,
    NOTHING,
    REAL,
    TEXT,
    WHOLE,
    Schema,
    both,
    either,
    fixed,
    form,
    like,
    many,
    maybe,
    real,
    record,
    ref,
    row,
    table,
    text,
    where,
    whole,
    word,
)

_SHORT = text(1, 20)


def _kind(name: str, **fields: Schema) -> Schema:
    """An object whose property `kind` tells it from others."""
    return record({"kind": fixed(name), **fields})


MEDIUM: Mapping[str, Schema] = {
    "order": record(
        {
            "id": like("^O-[0-9]{8}$"),
            "customer": record({"id": whole(1), "name": _SHORT, "vip?": FLAG}),
            "lines": many(
                record({"sku": like("^[A-Z0-9]{6}$"), "count": whole(1, 99), "price": real(0)}),
                1,
                4,
            ),
            "shipping": either(
                record({"method": fixed("pickup"), "store": _SHORT}),
                record({"method": fixed("post"), "address": text(1, 80), "express?": FLAG}),
            ),
        }
    ),
    "shapes": many(
        either(
            _kind("circle", r=real(0)),
            _kind("rect", w=real(0), h=real(0)),
            _kind("line", to=row(REAL, REAL)),
        ),
        1,
        4,
    ),
    "geo": record(
        {
            "type": fixed("FeatureCollection"),
            "features": many(
                record(
                    {
                        "type": fixed("Feature"),
                        "geometry": either(
                            record({"type": fixed("Point"), "coordinates": row(REAL, REAL)}),
                            record(
                                {
                                    "type": fixed("LineString"),
                                    "coordinates": many(row(REAL, REAL), 2, 4),
                                }
                            ),
                        ),
                        "properties": maybe(table(either(TEXT, REAL, FLAG), maxProperties=3)),
                    }
                ),
                0,
                3,
            ),
        }
    ),
    "chess": record(
        {
            "white": _SHORT,
            "black": _SHORT,
            "result": word("1-0", "0-1", "1/2-1/2"),
            "moves": many(
                like("^([NBRQK]?[a-h]?[1-8]?x?[a-h][1-8](=[NBRQ])?|O-O(-O)?)[+#]?$"), 1, 10
            ),
        }
    ),
    "playlist": record(
        {
            "name": _SHORT,
            "tracks": many(
                record({"title": _SHORT, "by": many(_SHORT, 1, 2), "ms": whole(1, 3600000)}), 0, 5
            ),
        }
    ),
    "survey": record(
        {
            "answers": {
                "type": "object",
                "patternProperties": {
                    "^q[0-9]{1,2}$": either(
                        whole(1, 5), text(0, 60), many(word("a", "b", "c"), 0, 3)
                    )
                },
                "additionalProperties": False,
                "maxProperties": 5,
            },
            "done": FLAG,
        }
    ),
    "calendar": record(
        {
            "events": many(
                record(
                    {
                        "summary": _SHORT,
                        "start": form("date-time"),
                        "end": form("date-time"),
                        "repeat?": record({"every": word("day", "week"), "count": whole(1, 52)}),
                        "guests?": many(form("email"), 0, 3),
                    }
                ),
                1,
                3,
            )
        }
    ),
    "bom": record(
        {"part": _SHORT, "needs": many(row(_SHORT, whole(1, 100), maybe(real(0))), 0, 6)}
    ),
    "api_error": record(
        {
            "error": record(
                {
                    "code": whole(400, 599),
                    "message": text(1, 100),
                    "details?": many(table(ANY, maxProperties=1), 0, 1),
                }
            )
        }
    ),
    "cards": record(
        {
            "hand": many(like("^(10|[2-9JQKA])[SHDC]$"), 5, 5),
            "bet": whole(0, 1000, multipleOf=10),
            "fold": FLAG,
        }
    ),
    "train": record(
        {
            "number": like("^(ICE|RE|S)[0-9]{1,4}$"),
            "stops": many(
                record(
                    {
                        "station": _SHORT,
                        "arrives": maybe(form("time")),
                        "platform?": either(whole(1, 40), like("^[0-9]{1,2}[ab]$")),
                    }
                ),
                2,
                5,
            ),
        }
    ),
    "colours": record(
        {
            "palette": many(
                either(like("^#[0-9A-F]{6}$"), row(whole(0, 255), whole(0, 255), whole(0, 255))),
                1,
                6,
            )
        }
    ),
    "permissions": record(
        {
            "user": _SHORT,
            "grants": table(many(word("read", "write", "admin"), 0, 3), maxProperties=4),
        }
    ),
    "budget": record(
        {
            "year": whole(2000, 2100),
            "months": many(record({"in": real(0), "out": real(0), "notes?": text(0, 60)}), 1, 12),
        }
    ),
    "chat": many(
        either(
            record({"role": word("system", "user"), "content": TEXT}),
            record(
                {
                    "role": fixed("assistant"),
                    "content": maybe(TEXT),
                    "calls?": many(record({"name": _SHORT, "arguments": TEXT}), 1, 2),
                }
            ),
        ),
        1,
        3,
    ),
    "metric": record(
        {
            "name": like("^[a-z_:]{1,40}$"),
            "labels": table(_SHORT, maxProperties=3),
            "points": many(row(whole(0), REAL), 0, 6),
        }
    ),
    "sudoku": many(many(whole(0, 9), 9, 9), 9, 9),
    "dns": record(
        {
            "zone": form("hostname"),
            "records": many(
                either(
                    record({"type": fixed("A"), "value": form("ipv4")}),
                    record({"type": fixed("AAAA"), "value": form("ipv6")}),
                    record(
                        {"type": fixed("MX"), "value": form("hostname"), "priority": whole(0, 100)}
                    ),
                    record({"type": fixed("TXT"), "value": text(0, 80)}),
                ),
                1,
                4,
            ),
        }
    ),
    "units": record(
        {
            "value": REAL,
            "unit": word("m", "s", "kg", "A", "K", "mol", "cd"),
            "power": word(-2, -1, 1, 2),
            "exact?": FLAG,
        }
    ),
    "diff": record(
        {
            "file": like("^[a-z_/]+[.]py$", maxLength=50),
            "hunks": many(
                record({"line": whole(1), "remove": many(TEXT, 0, 3), "add": many(TEXT, 0, 3)}),
                1,
                2,
            ),
        }
    ),
}

_EXPRESSION = either(
    REAL,
    like("^[a-z]$"),
    record({"op": word("+", "-", "*", "/"), "left": ref("e"), "right": ref("e")}),
    record({"call": word("sin", "cos", "exp"), "of": ref("e")}),
)
_RULE = either(
    record({"field": _SHORT, "is": either(TEXT, REAL, FLAG)}),
    record({"all": many(ref("rule"), 1, 3)}),
    record({"any": many(ref("rule"), 1, 3)}),
)

HARD: Mapping[str, Schema] = {
    "tree": where(ref("node"), node=record({"value": WHOLE, "children": many(ref("node"), 0, 2)})),
    "linked_list": where(ref("cell"), cell=record({"head": _SHORT, "tail": maybe(ref("cell"))})),
    "expression": where(ref("e"), e=_EXPRESSION),
    "rules": where(record({"when": ref("rule"), "then": many(_SHORT, 1, 3)}), rule=_RULE),
    "html": where(
        ref("element"),
        element=record(
            {
                "tag": word("p", "div", "b", "ul", "li"),
                "attributes?": table(text(0, 30), maxProperties=2),
                "children": many(either(text(0, 60), ref("element")), 0, 2),
            }
        ),
    ),
    "menu": where(
        record({"items": many(ref("item"), 1, 4)}),
        item=either(
            record({"label": _SHORT, "key?": like("^(Ctrl|Alt)[+][A-Z]$")}),
            record({"label": _SHORT, "items": many(ref("item"), 1, 2)}),
        ),
    ),
    "schema": where(
        ref("type"),
        type=either(
            word("int", "str", "bool"),
            record({"list": ref("type")}),
            record({"map": row(ref("type"), ref("type"))}),
            record({"union": many(ref("type"), 2, 3)}),
        ),
    ),
    "merged": both(
        record({"id": whole(1), "name?": _SHORT}, additionalProperties=True),
        {"properties": {"name": text(3, 20)}, "required": ["name"]},
        {"maxProperties": 3},
    ),
    "base_and_more": where(
        both(ref("base"), {"properties": {"speed": real(0, 400)}, "required": ["speed"]}),
        base={
            "type": "object",
            "properties": {"wheels": whole(0, 18), "maker": _SHORT},
            "required": ["wheels"],
        },
    ),
    "exclusive": {
        "oneOf": [
            record({"kind": fixed("card"), "number": like("^[0-9]{16}$")}),
            record({"kind": fixed("iban"), "iban": like("^DE[0-9]{20}$")}),
            record({"kind": fixed("cash")}),
        ]
    },
    "typed_values": many({"oneOf": [TEXT, REAL, FLAG, NOTHING, many(TEXT, 0, 2)]}, 1, 5),
    "versions": {
        "oneOf": [
            record({"version": fixed(1), "name": _SHORT}),
            record({"version": fixed(2), "first": _SHORT, "last": _SHORT}),
            record({"version": fixed(3), "names": many(_SHORT, 1, 4)}),
        ]
    },
    "mutual": where(
        ref("folder"),
        folder=record({"name": _SHORT, "entries": many(ref("entry"), 0, 2)}),
        entry=either(ref("folder"), ref("file")),
        file=record({"name": _SHORT, "bytes": whole(0)}),
    ),
    "long_enum": record(
        {
            "country": word(*(a + b for a in "ABCDEFGHIJ" for b in "KLMNOPQRST")),
            "code": word(*range(100, 400, 3)),
        }
    ),
    "many_optional": record(
        {f"field_{i}?": word("a", "b") if i % 2 else whole(0, i) for i in range(40)}
    ),
    "many_required": record({f"field_{i}": FLAG if i % 3 else whole(0, 9) for i in range(60)}),
    "wide_union": either(
        *(_kind(f"type_{i}", **{f"value_{i}": whole(0, i), "note": text(0, 10)}) for i in range(30))
    ),
    "patterns": record(
        {
            "a": like("^([a-z]+[0-9]+){1,4}$", maxLength=24),
            "b": like("(foo|bar)+baz"),
            "c": like("^[^@]{2,8}@[^@]{2,8}$"),
            "d": like(r"^\w{3,8}(-\w{3,8}){0,3}$"),
            "e": like("^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$"),
        }
    ),
    "numbers": record(
        {
            "a": whole(-128, 127),
            "b": whole(0, 9223372036854775807),
            "c": real(-1e-3, 1e-3),
            "d": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "e": whole(0, 1000, multipleOf=25),
            "f": {"type": "integer", "multipleOf": 7},
        }
    ),
    "nested": record(
        {
            "a": record(
                {
                    "b": record(
                        {
                            "c": record(
                                {
                                    "d": record(
                                        {
                                            "e": record(
                                                {
                                                    "f": many(
                                                        many(many(whole(0, 9), 0, 2), 0, 2), 0, 2
                                                    )
                                                }
                                            )
                                        }
                                    )
                                }
                            )
                        }
                    )
                }
            )
        }
    ),
}
