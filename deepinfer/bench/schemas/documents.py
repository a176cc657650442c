"""Forty schemas of what is published and logged: events of web pages, articles.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.bench.schemas.build import (
    FLAG,
    REAL,
    TEXT,
    Schema,
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

_ID = form("uuid")
_NAME = text(1, 255)
_COUNT = whole(0, 2147483647)
_WHEN = form("date-time")
_MONEY = record({"amount": real(0), "currency": like("^[A-Z]{3}$")})

EVENTS: Mapping[str, Schema] = {
    "page_ping": record({"page": _ID, "seconds": whole(0, 32767), "depth?": real(0, 1)}),
    "click": record(
        {"target": _NAME, "x": whole(0, 32767), "y": whole(0, 32767), "text?": maybe(text(0, 500))}
    ),
    "form_change": record(
        {
            "form": _NAME,
            "field": _NAME,
            "kind": word("INPUT", "TEXTAREA", "SELECT"),
            "value": maybe(text(0, 200)),
        }
    ),
    "video": record(
        {
            "id": text(1, 64),
            "state": word("play", "pause", "seek", "end"),
            "at": real(0),
            "muted": FLAG,
            "volume?": whole(0, 100),
            "rate?": real(0.25, 4),
        }
    ),
    "cart_add": record(
        {
            "sku": text(1, 64),
            "name?": maybe(_NAME),
            "price": real(0, multipleOf=0.01),
            "quantity": whole(1, 1000),
            "currency": like("^[A-Z]{3}$"),
        }
    ),
    "purchase": record(
        {
            "order": text(1, 32),
            "items": many(record({"sku": text(1, 32), "count": whole(1, 99)}), 1, 5),
            "total": _MONEY,
            "coupon?": maybe(text(1, 20)),
        }
    ),
    "search": record(
        {"terms": many(text(1, 40), 1, 8), "hits": _COUNT, "filters?": table(TEXT, maxProperties=4)}
    ),
    "error": record(
        {
            "message": text(1, 2048),
            "class": maybe(text(0, 1024)),
            "line?": _COUNT,
            "column?": _COUNT,
            "stack?": text(0, 8192),
        }
    ),
    "session": record(
        {"id": _ID, "index": whole(1), "previous": maybe(_ID), "storage": word("COOKIE", "LOCAL")}
    ),
    "consent": record(
        {"scopes": many(word("ads", "stats", "needed"), 1, 3), "url": form("uri"), "at": _WHEN}
    ),
    "device": record(
        {
            "os": word("ios", "android", "other"),
            "version": like(r"^\d{1,3}(\.\d{1,3}){0,2}$"),
            "model": text(1, 80),
            "battery?": whole(0, 100),
            "network?": word("wifi", "mobile", "offline"),
        }
    ),
    "place": record(
        {
            "latitude": real(-90, 90),
            "longitude": real(-180, 180),
            "accuracy?": maybe(real(0)),
            "speed?": maybe(real(0, 400)),
        }
    ),
    "score": record({"user": _NAME, "points": _COUNT, "level?": maybe(whole(1, 100))}),
    "timing": record(
        {"name": text(1, 40), "category": text(1, 40), "ms": whole(0, 600000), "label?": TEXT}
    ),
    "login": record(
        {
            "method": word("password", "sso", "key"),
            "good": FLAG,
            "tries": whole(1, 10),
            "ip": form("ipv4"),
        }
    ),
    "mail_open": record({"mail": _ID, "to": form("email"), "at": _WHEN, "client?": text(0, 60)}),
    "experiment": record(
        {"name": text(1, 60), "variant": word("A", "B", "control"), "bucket": whole(0, 99)}
    ),
    "feature": record({"flag": like("^[a-z_]{3,30}$"), "on": FLAG, "by": maybe(form("email"))}),
    "ad": record(
        {
            "campaign": _ID,
            "cost": real(0, 1000),
            "model": word("cpa", "cpc", "cpm"),
            "zone?": text(1, 30),
        }
    ),
    "heartbeat": record({"service": form("hostname"), "at": _WHEN, "load": row(REAL, REAL, REAL)}),
}

_BLOCK = either(
    record({"type": fixed("text"), "content": TEXT}),
    record({"type": fixed("image"), "url": form("uri"), "caption?": text(0, 120)}),
    record({"type": fixed("quote"), "content": TEXT, "by?": TEXT}),
    record({"type": fixed("list"), "items": many(TEXT, 1, 5)}),
)
_AUTHOR = record({"name": text(1, 60), "email?": form("email"), "role?": word("staff", "guest")})

ARTICLES: Mapping[str, Schema] = {
    "story": record(
        {"headline": text(1, 120), "authors": many(_AUTHOR, 1, 3), "blocks": many(_BLOCK, 1, 4)}
    ),
    "headline": record(
        {"short": text(1, 50), "long": text(1, 150), "language": word("en", "de", "zh")}
    ),
    "byline": record({"people": many(_AUTHOR, 1, 4), "place?": text(1, 40), "at": _WHEN}),
    "image": record(
        {
            "url": form("uri"),
            "width": whole(1, 20000),
            "height": whole(1, 20000),
            "alt": text(0, 200),
            "credits?": many(text(1, 40), 0, 3),
            "focus?": row(real(0, 1), real(0, 1)),
        }
    ),
    "gallery": record(
        {
            "title": text(1, 80),
            "images": many(record({"url": form("uri"), "order": whole(0, 50)}), 1, 6),
        }
    ),
    "video": record(
        {
            "title": TEXT,
            "seconds": whole(1),
            "streams": many(record({"kbps": whole(64), "url": form("uri")}), 1, 4),
        }
    ),
    "correction": record(
        {"article": _ID, "kind": word("correction", "clarification"), "text": text(1, 400)}
    ),
    "comment": where(
        record(
            {"author": text(1, 30), "text": text(1, 200), "replies": many(ref("comment"), 0, 2)}
        ),
        comment=record(
            {"author": text(1, 30), "text": text(1, 200), "replies?": many(ref("comment"), 0, 2)}
        ),
    ),
    "section": where(
        record({"name": text(1, 30), "path": like("^/[a-z-]{1,20}$"), "parent": maybe(ref("up"))}),
        up=record({"name": text(1, 30), "parent?": maybe(ref("up"))}),
    ),
    "live": record(
        {
            "title": TEXT,
            "posts": many(record({"at": _WHEN, "text": TEXT, "key": FLAG}), 0, 5),
            "open": FLAG,
        }
    ),
    "obituary": record(
        {
            "name": text(1, 60),
            "born": maybe(form("date")),
            "died": form("date"),
            "age?": whole(0, 125),
        }
    ),
    "review": record(
        {
            "work": record({"kind": word("film", "book", "game"), "title": TEXT}),
            "verdict": text(1, 300),
            "stars": real(0, 5, multipleOf=0.5),
        }
    ),
    "recipe": record(
        {
            "title": text(1, 60),
            "serves": whole(1, 20),
            "steps": many(text(1, 200), 1, 6),
            "items": many(
                record({"name": text(1, 30), "amount": real(0), "unit": word("g", "ml", "piece")}),
                1,
                8,
            ),
        }
    ),
    "poll": record(
        {
            "question": text(1, 120),
            "answers": many(record({"text": text(1, 40), "share": real(0, 100)}), 2, 5),
        }
    ),
    "match": record(
        {
            "home": text(1, 30),
            "away": text(1, 30),
            "goals": row(whole(0, 20), whole(0, 20)),
            "cards?": many(
                record(
                    {
                        "minute": whole(1, 120),
                        "colour": word("yellow", "red"),
                        "player": text(1, 40),
                    }
                ),
                0,
                4,
            ),
        }
    ),
    "weather": record(
        {
            "place": text(1, 40),
            "days": many(
                record(
                    {
                        "date": form("date"),
                        "low": real(-60, 60),
                        "high": real(-60, 60),
                        "sky": word("sun", "cloud", "rain", "snow"),
                    }
                ),
                1,
                5,
            ),
        }
    ),
    "chart": record(
        {
            "title": text(0, 80),
            "kind": word("bar", "line"),
            "series": many(record({"name": text(1, 20), "values": many(maybe(REAL), 1, 6)}), 1, 3),
        }
    ),
    "newsletter": record(
        {
            "subject": text(1, 78),
            "sections": many(record({"title": TEXT, "links": many(form("uri"), 1, 3)}), 1, 3),
        }
    ),
    "taxonomy": record(
        {
            "primary": like("^/([a-z]+/?){1,3}$"),
            "tags": many(text(1, 20), 0, 6),
            "weight?": real(0, 1),
        }
    ),
    "podcast": record(
        {
            "episode": whole(1),
            "title": TEXT,
            "minutes": whole(1, 600),
            "guests": many(text(1, 40), 0, 4),
        }
    ),
}
