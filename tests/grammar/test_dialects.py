"""The tables of docs/structured-output.md are those of the code, and complete."""

import re
from dataclasses import fields
from datetime import date, datetime, time
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import jsonschema_specifications
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.grammar import Constraint, Limits
from deepinfer.grammar.finished import check_finished
from deepinfer.grammar.json_text import read_json, write_json
from deepinfer.grammar.keywords import ANNOTATIONS, ENFORCED, FORMATS, REFUSED
from deepinfer.grammar.raw_text import TEXT_FORMATS
from tests.grammar.schemas import as_text, random_text
from tests.grammar.vocabularies import compiled, encode, refusal_of, satisfies

PAGE = (Path(__file__).parents[2] / "docs" / "structured-output.md").read_text(encoding="utf-8")
DRAFT = "https://json-schema.org/draft/2020-12/meta/"
PARTS = ("core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation",
         "content")  # fmt: skip


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def section(number: int) -> str:
    return PAGE.split(f"\n## {number}. ")[1].split("\n## ")[0]


def test_every_keyword_of_the_draft_is_enforced_an_annotation_or_refused():
    draft: set[str] = set()
    for part in PARTS:
        page = jsonschema_specifications.REGISTRY.contents(DRAFT + part)
        assert isinstance(page, dict)
        draft |= set(page["properties"])
    assert len(draft) > 50
    assert draft - set(ENFORCED) - set(REFUSED) - ANNOTATIONS == set()
    assert set(ENFORCED) & set(REFUSED) == set()
    assert ANNOTATIONS & (set(ENFORCED) | set(REFUSED)) == set()


def test_page_names_every_keyword_where_it_belongs():
    enforced, _, refused = section(2).partition("Without effect")
    without, _, refused = refused.partition("| refused |")
    rows = [line.split("|")[1] for line in refused.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in named(row)} == set(REFUSED)
    assert set(ENFORCED) <= named(enforced)
    assert named(without) >= ANNOTATIONS
    assert named(refused.split("Formats:")[1].split(";")[0]) == FORMATS


def test_page_has_the_limits_of_the_code():
    numbers = {int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\d|\d+", section(6))}
    shown = {"source_bytes", "nesting", "groups", "rules", "compile_seconds", "compile_bytes",
             "step_fuel", "step_items"}  # fmt: skip
    assert {getattr(Limits(), name) for name in shown} <= numbers
    assert shown <= {field.name for field in fields(Limits)}


DURATION = r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)"
READERS = {
    "date": date.fromisoformat,
    "date-time": lambda text: datetime.fromisoformat(text.upper()),  # RFC 3339 has t and z, too
    "duration": lambda text: None if re.fullmatch(DURATION, text) else 1 / 0,
    "email": lambda text: None if re.fullmatch(r"[^@\s]+@[^@\s]+", text) else 1 / 0,
    "hostname": lambda text: text.encode("idna"),
    "ipv4": ip_address,
    "ipv6": ip_address,
    "time": lambda text: time.fromisoformat(text.upper()),
    "uri": lambda text: urlsplit(text).scheme or 1 / 0,
    "uuid": UUID,
}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_strings_of_every_format_are_read_by_others(name):
    constraint = Constraint("json_schema", f'{{"type": "string", "format": "{name}"}}')
    grammar, read = compiled(constraint), 0
    for seed in range(40):
        ids = random_text(grammar.matcher(), seed, most=80)
        if ids is not None:
            value = read_json(as_text(ids), 2, "it")
            assert isinstance(value, str)
            READERS[name](value)
            assert check_finished(constraint, as_text(ids)) == ""
            read += 1
    assert read >= 3
    assert not satisfies(grammar, encode('"?"'))


def test_dates_are_those_of_the_calendar():
    pattern = re.compile(TEXT_FORMATS["date"])
    for year in (0, 1, 4, 100, 400, 1900, 2000, 2023, 2024, 9999):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                assert bool(pattern.fullmatch(text)) == _is_date(text), text


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def test_date_beside_a_pattern_satisfies_both():
    schema = '{"type": "string", "format": "date", "pattern": "^2026"}'
    grammar = compiled(Constraint("json_schema", schema))
    assert satisfies(grammar, encode('"2026-02-28"'))
    assert not satisfies(grammar, encode('"2026-02-29"'))
    assert not satisfies(grammar, encode('"2025-02-28"'))


KEYS = st.sampled_from([*ENFORCED, *ANNOTATIONS, *list(REFUSED)[:6], "uniqueItems", "x", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats(allow_nan=False)
    | st.sampled_from(["string", "integer", "object", "#", "#/$defs/a", "a(", "^a$", "date"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(KEYS | st.sampled_from(["a", "$defs"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@settings(max_examples=150)
def test_any_json_is_compiled_or_refused_as_a_schema(value):
    refusal = refusal_of(Constraint("json_schema", write_json(value)))
    assert not refusal or refusal.startswith(("json schema", "$schema", "json_schema"))
    assert len(refusal) < 600


@given(st.text('{}[]":,$defrptyn0195.-eE \\u', max_size=40))
@settings(max_examples=200)
def test_any_text_is_compiled_or_refused_as_a_schema(text):
    refusal = refusal_of(Constraint("json_schema", text))
    assert not refusal or refusal.startswith(("json schema", "json_schema"))
