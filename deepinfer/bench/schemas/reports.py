"""Twenty schemas of what is read out of a text: invoices, tickets, entities.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.bench.schemas.build import (
    FLAG,
    REAL,
    TEXT,
    WHOLE,
    Schema,
    either,
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

_WHEN = form("date-time")
_MONEY = record({"amount": real(0), "currency": like("^[A-Z]{3}$")})

_LINE = record(
    {
        "description": text(1, 100),
        "quantity": real(0),
        "unit_price": real(0),
        "tax_percent?": real(0, 100),
    }
)
_PARTY = record(
    {"name": text(1, 80), "address?": text(1, 160), "tax_id?": like("^[A-Z]{2}[0-9A-Z]{8,12}$")}
)

REPORTS: Mapping[str, Schema] = {
    "invoice": record(
        {
            "number": text(1, 30),
            "date": form("date"),
            "seller": _PARTY,
            "buyer": _PARTY,
            "lines": many(_LINE, 1, 10),
            "total": _MONEY,
            "paid?": FLAG,
        }
    ),
    "receipt": record(
        {
            "shop": text(1, 60),
            "at": maybe(_WHEN),
            "items": many(row(text(1, 40), real(0)), 1, 12),
            "sum": real(0),
        }
    ),
    "resume": record(
        {
            "name": text(1, 60),
            "email?": form("email"),
            "skills": many(text(1, 25), 0, 10),
            "jobs": many(
                record(
                    {
                        "title": text(1, 60),
                        "firm": text(1, 60),
                        "from": like(r"^\d{4}-\d{2}$"),
                        "to": maybe(like(r"^\d{4}-\d{2}$")),
                    }
                ),
                0,
                5,
            ),
        }
    ),
    "sentiment": record(
        {"label": word("positive", "neutral", "negative"), "score": real(0, 1), "why": text(1, 200)}
    ),
    "entities": record(
        {
            "entities": many(
                record(
                    {
                        "text": text(1, 60),
                        "kind": word("person", "place", "firm", "date"),
                        "start": whole(0),
                        "end": whole(0),
                    }
                ),
                0,
                8,
            )
        }
    ),
    "triples": many(
        record({"subject": text(1, 40), "relation": text(1, 30), "object": text(1, 40)}), 1, 6
    ),
    "summary": record(
        {"title": text(1, 80), "points": many(text(1, 160), 1, 5), "words": whole(1, 1000)}
    ),
    "plan": record(
        {
            "goal": TEXT,
            "steps": many(
                record({"id": whole(1, 20), "do": TEXT, "needs": many(whole(1, 20), 0, 4)}), 1, 6
            ),
        }
    ),
    "grades": record(
        {
            "student": text(1, 40),
            "marks": table(word("A", "B", "C", "D", "F"), maxProperties=6, minProperties=1),
        }
    ),
    "lab": record(
        {
            "patient": like("^P[0-9]{6}$"),
            "values": many(
                record(
                    {
                        "name": text(1, 30),
                        "value": REAL,
                        "unit": text(1, 10),
                        "low?": REAL,
                        "high?": REAL,
                        "flag?": word("L", "H", "N"),
                    }
                ),
                1,
                6,
            ),
        }
    ),
    "prescription": record(
        {
            "drug": text(1, 50),
            "mg": whole(1, 5000),
            "times": many(like("^([01][0-9]|2[0-3]):[0-5][0-9]$"), 1, 6),
            "days": whole(1, 90),
            "notes?": text(0, 200),
        }
    ),
    "contract": record(
        {
            "parties": many(_PARTY, 2, 4),
            "starts": form("date"),
            "ends": maybe(form("date")),
            "clauses": many(
                record({"number": like(r"^\d{1,2}(\.\d{1,2})?$"), "text": text(1, 200)}), 1, 5
            ),
        }
    ),
    "table": record(
        {"columns": many(text(1, 20), 1, 6), "rows": many(many(either(TEXT, REAL), 1, 6), 0, 5)}
    ),
    "thoughts": record(
        {"reasoning": many(text(1, 200), 1, 5), "answer": either(TEXT, REAL), "sure": real(0, 1)}
    ),
    "ticket": record(
        {
            "title": text(1, 100),
            "kind": word("bug", "wish", "question"),
            "urgency": whole(1, 5),
            "labels": many(text(1, 20), 0, 4),
            "steps?": many(TEXT, 0, 5),
        }
    ),
    "meeting": record(
        {
            "at": _WHEN,
            "people": many(text(1, 40), 1, 8),
            "decisions": many(TEXT, 0, 4),
            "tasks": many(record({"who": text(1, 40), "what": TEXT, "by?": form("date")}), 0, 4),
        }
    ),
    "judge": record(
        {"better": word("first", "second", "tie"), "margin": whole(0, 3), "because": text(1, 300)}
    ),
    "quiz": many(
        record({"question": TEXT, "choices": many(text(1, 40), 4, 4), "right": whole(0, 3)}), 1, 3
    ),
    "bank": record(
        {
            "iban": like("^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"),
            "bookings": many(
                record({"date": form("date"), "cents": WHOLE, "text": text(0, 140)}), 0, 6
            ),
            "balance": WHOLE,
        }
    ),
    "flights": record(
        {
            "legs": many(
                record(
                    {
                        "flight": like("^[A-Z0-9]{2}[0-9]{1,4}$"),
                        "from": like("^[A-Z]{3}$"),
                        "to": like("^[A-Z]{3}$"),
                        "departs": _WHEN,
                        "seat?": maybe(like("^[0-9]{1,2}[A-K]$")),
                    }
                ),
                1,
                4,
            )
        }
    ),
}
