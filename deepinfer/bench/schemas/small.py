"""Sixty schemas as people write them for one thing: function calls, trivial and easy ones.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.bench.schemas.build import (
    FLAG,
    NOTHING,
    REAL,
    TEXT,
    WHOLE,
    Schema,
    either,
    fixed,
    form,
    like,
    many,
    maybe,
    real,
    record,
    row,
    table,
    text,
    whole,
    word,
)

PLACE = record({"latitude": real(-90, 90), "longitude": real(-180, 180)})

CALLS: Mapping[str, Schema] = {
    "weather": record({"city": TEXT, "unit?": word("celsius", "fahrenheit")}),
    "translate": record({"text": text(1, 200), "source?": like("^[a-z]{2}$"), "target": TEXT}),
    "distance": record({"from": PLACE, "to": PLACE, "unit": word("km", "mi", "m")}),
    "loan": record(
        {"principal": real(0), "rate": real(0, 100), "years": whole(1, 50), "monthly?": FLAG}
    ),
    "book_flight": record(
        {
            "from": like("^[A-Z]{3}$"),
            "to": like("^[A-Z]{3}$"),
            "date": form("date"),
            "passengers": whole(1, 9),
            "class?": word("economy", "business", "first"),
        }
    ),
    "send_mail": record(
        {
            "to": many(form("email"), 1, 5),
            "cc?": many(form("email"), 0, 5),
            "subject": text(1, 80),
            "body": TEXT,
            "attachments?": many(record({"name": text(1, 40), "bytes": whole(0)}), 0, 3),
        }
    ),
    "search": record({"query": text(1), "top_k": whole(1, 100), "fresh?": maybe(FLAG)}),
    "reminder": record(
        {"text": text(1, 100), "at": form("date-time"), "repeat?": word("day", "week")}
    ),
    "convert_money": record(
        {"amount": real(0.01), "from": like("^[A-Z]{3}$"), "to": like("^[A-Z]{3}$")}
    ),
    "play_music": record({"title?": TEXT, "artist?": TEXT, "volume?": whole(0, 100)}),
    "thermostat": record({"room": word("kitchen", "bath", "bed", "hall"), "degrees": real(5, 35)}),
    "run_sql": record({"statement": TEXT, "parameters": many(either(TEXT, REAL, NOTHING), 0, 6)}),
    "resize": record({"width": whole(1, 10000), "height": whole(1, 10000), "keep_ratio": FLAG}),
    "timer": record({"seconds": whole(1, 86400, multipleOf=5), "label?": text(0, 30)}),
    "bmi": record({"height_cm": real(30, 272), "weight_kg": real(1, 635)}),
    "random": record({"low": WHOLE, "high": WHOLE, "count?": whole(1, 1000)}),
    "open_door": record({"door": whole(1, 4), "code": like(r"^\d{4}$")}),
    "recipe_by_items": record(
        {"items": many(text(2, 20), 1, 8), "diet?": word("vegan", "halal", "any")}
    ),
    "rename_file": record({"path": like("^/([^/]+/)*[^/]+$", maxLength=120), "name": text(1, 60)}),
    "nothing": record({}),
}

TRIVIAL: Mapping[str, Schema] = {
    "string": TEXT,
    "integer": WHOLE,
    "number": REAL,
    "boolean": FLAG,
    "null": NOTHING,
    "colour": like("^#[0-9a-f]{6}$"),
    "level": word("debug", "info", "warning", "error"),
    "yes": fixed("yes"),
    "percent": real(0, 100),
    "year": whole(1900, 2100),
    "name": record({"name": TEXT}),
    "flags": many(FLAG, 0, 8),
    "point": row(REAL, REAL),
    "either": either(WHOLE, TEXT),
    "id": record({"id": form("uuid")}),
    "open": {"type": "object", "properties": {"id": WHOLE}, "required": ["id"], "maxProperties": 3},
    "scores": table(whole(0, 10), maxProperties=5),
    "mixed": {"type": ["string", "null"], "maxLength": 12},
    "matrix": many(many(whole(0, 9), 2, 2), 2, 2),
    "answer": record({"answer": word("A", "B", "C", "D"), "sure": FLAG}),
}

EASY: Mapping[str, Schema] = {
    "person": record({"first": text(1, 30), "last": text(1, 30), "born?": form("date")}),
    "address": record(
        {
            "street": text(1, 60),
            "number": like(r"^\d{1,4}[a-z]?$"),
            "zip": like(r"^\d{5}$"),
            "city": text(1, 40),
            "country?": like("^[A-Z]{2}$"),
        }
    ),
    "product": record(
        {
            "sku": like("^[A-Z]{3}-[0-9]{4}$"),
            "title": text(1, 80),
            "price": real(0),
            "tags?": many(text(1, 15), 0, 5),
            "stock": whole(0),
        }
    ),
    "movie": record(
        {
            "title": TEXT,
            "year": whole(1888, 2100),
            "genres": many(word("drama", "comedy", "noir"), 1, 3),
            "rating?": real(0, 10),
        }
    ),
    "review": record({"stars": whole(1, 5), "text": text(0, 300), "author": maybe(TEXT)}),
    "coordinates": record(
        {"type": fixed("Point"), "coordinates": row(real(-180, 180), real(-90, 90))}
    ),
    "todo": record({"title": TEXT, "done": FLAG, "priority?": word(1, 2, 3), "due?": form("date")}),
    "login": record({"user": like("^[a-z][a-z0-9_]{2,15}$"), "password": text(8, 64)}),
    "range": record({"low": real(), "high": real(), "open?": FLAG}),
    "contact": record({"email": form("email"), "phone?": like(r"^\+[0-9]{7,15}$")}),
    "settings": record({"theme": word("light", "dark"), "size": whole(8, 72), "wrap": FLAG}),
    "book": record({"isbn": like(r"^97[89]-\d{10}$"), "title": TEXT, "authors": many(TEXT, 1, 4)}),
    "song": record(
        {"title": text(1, 50), "seconds": whole(1, 7200), "artists": many(text(1, 40), 1, 3)}
    ),
    "host": record({"name": form("hostname"), "ip": form("ipv4"), "port": whole(1, 65535)}),
    "vote": record({"question": text(1, 100), "votes": table(whole(0), maxProperties=6)}),
    "lap": record({"driver": text(3, 3), "time": like(r"^\d:[0-5]\d\.\d{3}$"), "pit": FLAG}),
    "wallet": record({"owner": TEXT, "cents": whole(), "currency": word("EUR", "USD", "JPY")}),
    "opening": record(
        {
            "day": word("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"),
            "from": like("^[0-2][0-9]:[0-5][0-9]$"),
            "to": like("^[0-2][0-9]:[0-5][0-9]$"),
            "closed?": FLAG,
        }
    ),
    "sensor": record({"id": form("uuid"), "celsius": real(-80, 80), "at": form("date-time")}),
    "tag": record({"key": like("^[a-z.]{1,20}$"), "value": either(TEXT, WHOLE, FLAG)}),
}
