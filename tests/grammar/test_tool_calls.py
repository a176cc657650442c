import json
import re
from datetime import date, datetime, time
from ipaddress import ip_address
from uuid import UUID

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Grammar, Tool, tool_calls, tool_start
from deepinfer.grammar.finished import check_finished
from deepinfer.grammar.raw_text import CLOSING, TEXT_FORMATS
from deepinfer.grammar.tool_calls import DIALECTS, DSML, DialectName
from deepinfer.recipe.encode import dsml
from tests.grammar.schemas import LEAVES, NAMES, SCHEMAS, as_text, random_text
from tests.grammar.vocabularies import (
    compiled,
    encode,
    legal_ids,
    satisfies,
    tiny_vocabulary,
    vocabulary,
)

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["C", "F", 0]},
        "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "at": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "$defs": {
        "place": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    },
}
TOOLS = [Tool("weather", WEATHER, strict=True), Tool("stop", None, strict=True), Tool("any")]


def required(
    tools: list[Tool] = TOOLS, dialect: DialectName = "v4.1", parallel: bool = True
) -> Grammar:
    return compiled(tool_calls(tools, dialect, required=True, parallel=parallel))


def call(name: str, arguments: dict[str, str], dialect: DialectName = "v4.1") -> str:
    """A call, as the model writes it. Values that start with `=` are JSON, others text."""
    tags = DIALECTS[dialect]
    lines = [f'<{DSML}{tags.invoke} name="{name}">']
    for key, value in arguments.items():
        is_json = value.startswith("=")
        flag = "false" if is_json else "true"
        opening = f'<{DSML}{tags.parameter} name="{key}" string="{flag}">'
        lines.append(f"{opening}{value[is_json:]}</{DSML}{tags.parameter}>")
    if not arguments and tags.empty_call:
        lines.append("")
    return "\n".join([*lines, f"</{DSML}{tags.invoke}>"])


def block(*calls: str, dialect: DialectName = "v4.1") -> str:
    """Calls and what closes the block; it was opened in the prompt."""
    return "\n".join([*calls, f"</{DSML}{DIALECTS[dialect].block}>"])


def read(text: str) -> list[tuple[str, dict[str, object]]]:
    """Names and arguments of a V4.1 block, read with the simplest expressions that do."""
    calls = []
    for name, body in re.findall(
        rf'<{DSML} invoke name="([^"]*)">\n(.*?)</{DSML} invoke>', text, re.DOTALL
    ):
        found = re.findall(
            rf'<{DSML} parameter name="([^"]*)" string="(true|false)">(.*?)</{DSML} parameter>\n',
            body,
            re.DOTALL,
        )
        calls.append((name, {k: v if f == "true" else json.loads(v) for k, f, v in found}))
    return calls


def test_markup_is_that_of_the_codec():
    for ours, theirs in ((DIALECTS["v4"], dsml.V4), (DIALECTS["v4.1"], dsml.V41)):
        for field in ("block", "invoke", "parameter", "empty_call"):
            assert getattr(ours, field) == getattr(theirs, field)


@pytest.mark.parametrize("dialect", ["v4", "v4.1"])
def test_calls_as_the_model_writes_them_are_accepted(dialect: DialectName):
    full = {"city": 'a </b> "c"\n', "days": "=3", "unit": "C", "note": "abc", "at": '={"x": "y"}'}
    grammar = required(dialect=dialect)
    for calls in (
        [("weather", full)],
        [("weather", {"city": ""})],
        [("weather", {"city": "x", "unit": "=0", "note": "=null"}), ("stop", {}), ("stop", {})],
        [("any", {"x y": "raw", "z": '=[1, {"a": null}]', "": "=1"}), ("any", {})],
    ):
        text = block(*(call(name, given, dialect) for name, given in calls), dialect=dialect)
        assert satisfies(grammar, encode(text)), text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("weather", {}),
        ("weather", {"days": "=3"}),
        ("weather", {"city": "=1"}),
        ("weather", {"city": '="x"'}),
        ("weather", {"city": "x", "days": "=0"}),
        ("weather", {"city": "x", "days": "3"}),
        ("weather", {"city": "x", "unit": "K"}),
        ("weather", {"city": "x", "unit": "0"}),
        ("weather", {"city": "x", "note": "abcd"}),
        ("weather", {"city": "x", "at": "={}"}),
        ("weather", {"city": "x", "other": "y"}),
        ("stop", {"city": "x"}),
        ("any", {"x": "=nope"}),
        ("unknown", {}),
    ],
)
def test_calls_that_break_a_strict_schema_are_rejected(name, arguments):
    assert not satisfies(required(), encode(block(call(name, arguments))))


@given(st.dictionaries(NAMES.filter(lambda n: '"' not in n), LEAVES | SCHEMAS, max_size=3),
       st.data())  # fmt: skip
@settings(max_examples=30)
def test_generated_arguments_of_strict_tools_validate(properties, data):
    names = sorted(properties)
    needed = [name for name in names if data.draw(st.booleans())]
    schema = {"type": "object", "properties": properties, "required": needed}
    try:
        grammar = required([Tool("f", schema, strict=True)])
    except RequestError as refusal:
        known = ("Unsatisfiable", "min/maxProperties", "around a string argument")
        assume(not any(reason in str(refusal) for reason in known))
        raise
    ids = random_text(grammar.matcher(), data.draw(st.integers(0, 1 << 30)), most=200)
    if ids is None:
        return
    text = as_text(ids)
    calls = read(text)
    assert len(calls) == text.count("</｜DSML｜ invoke>") >= 1
    for name, arguments in calls:
        assert name == "f"
        assert set(arguments) <= set(properties)
        jsonschema.validate(arguments, schema)


READERS = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "email": lambda text: None if text.count("@") == 1 else 1 / 0,
    "hostname": lambda text: text.encode("idna"),
    "ipv4": ip_address,
    "ipv6": ip_address,
    "time": time.fromisoformat,
    "uuid": UUID,
}


@given(st.sampled_from(sorted(READERS)), st.integers(0, 1 << 30))
def test_formats_of_raw_text_are_read_by_others(name, seed):
    grammar = compiled(Constraint("regex", TEXT_FORMATS[name]))
    ids = random_text(grammar.matcher(), seed, most=60)
    if ids is not None:
        READERS[name](as_text(ids))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2026-11-29", "0001-01-31", "2024-02-29", "2000-02-29"],
         ["2026-11-31", "0000-01-01", "2026-1-1", "2026-02-29", "1900-02-29"]),
        ("date-time", ["2026-11-29T23:59:59.5+02:00"], ["2026-11-29 00:00:00Z", "2026-11-29"]),
        ("email", ["a.b+c@d-e.f", "a@b"], ["a@", "@b", "a@-b", ".a@b"]),
        ("hostname", ["a", "a-1.b2"], ["-a", "a-", "a..b", "a" * 64]),
        ("ipv4", ["0.255.1.99"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
        ("ipv6", ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:1.2.3.4", "a::b:c"],
         ["1:2:3:4:5:6:7", "1::2::3", ":1", "1:2:3:4:5:6:7:8:9"]),
        ("time", ["00:00:00Z"], ["24:00:00Z", "00:00:00"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
    ],
)  # fmt: skip
def test_formats_of_raw_text(name, good, bad):
    grammar = compiled(Constraint("regex", TEXT_FORMATS[name]))
    assert [text for text in good if not satisfies(grammar, encode(text))] == []
    assert [text for text in bad if satisfies(grammar, encode(text))] == []


def test_raw_text_never_holds_what_closes_it():
    grammar = required(
        [Tool("f", {"type": "object", "properties": {"a": {"type": "string"}}}, True)]
    )
    plain = [id for char in CLOSING for id in encode(char)]
    assert b"".join(map(vocabulary().token_bytes, plain)).decode() == CLOSING
    head = encode(f'<{DSML} invoke name="f">\n<{DSML} parameter name="a" string="true">x')
    matcher = grammar.matcher()
    assert matcher.accept(head) == len(head)
    assert matcher.accept(plain) < len(plain)


@given(st.data())
def test_json_text_never_holds_what_closes_it(data):
    grammar = required()
    matcher = grammar.matcher()
    head = encode(f'<{DSML} invoke name="any">\n<{DSML} parameter name="a" string="false">"x')
    assert matcher.accept(head) == len(head)
    left = CLOSING.encode()
    while left:
        # Any tokens of text that spell it, in any cut.
        fitting = [
            id
            for id in range(vocabulary().size)
            if id not in vocabulary().control
            and vocabulary().token_bytes(id)
            and left.startswith(vocabulary().token_bytes(id))
        ]
        id = data.draw(st.sampled_from(fitting))
        left = left[len(vocabulary().token_bytes(id)) :]
        legal = legal_ids(matcher)
        assert legal == {i for i in range(vocabulary().size) if matcher.copy().accept([i])}
        assert (id in legal) == bool(left)
        if left:
            assert matcher.accept([id]) == 1
    # It may go on in another way, such as with the character before, and be closed by the mark.
    before = matcher.num_tokens
    taken = 3 - len(vocabulary().token_bytes(id))  # bytes of the last character that stand already
    for byte in b"\xef\xbd\x9b"[taken:] if taken > 0 else b"":
        assert matcher.accept([min(vocabulary().starting_with(bytes([byte])))]) == 1
    rest = encode(f'-"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>')
    assert matcher.accept(rest) == len(rest)
    assert matcher.is_complete
    matcher.rollback(matcher.num_tokens - before)
    assert id not in legal_ids(matcher)


def test_one_call_only_unless_parallel():
    text = encode(block(call("stop", {}), call("stop", {})))
    assert satisfies(required(), text)
    assert not satisfies(required(parallel=False), text)


def test_auto_is_free_until_a_block_opens_and_after_it_closes():
    tokens = vocabulary()
    grammar = compiled(tool_calls(TOOLS, "v4.1", required=False))
    start = tool_start(tokens, required=False)
    opened = f"<{DSML} calls>\n" + block(call("weather", {"city": "x"}))
    matcher = grammar.matcher(start)
    prose = encode(f"The {DSML} token, </{DSML} and 2 < 3.\n\n")
    assert matcher.accept(prose) == len(prose)
    assert matcher.is_free
    ids = encode(opened)
    assert matcher.accept(ids) == len(ids)
    assert matcher.is_free
    wrong = grammar.matcher(start)
    broken = encode(opened.replace('"city"', '"town"'))
    assert wrong.accept(broken) < len(broken)
    assert not wrong.is_complete
    assert not wrong.accept([1])


SCHEMA = Constraint("json_schema", '{"type": "object", "required": ["a"], "properties": {"a": {}}}')


@pytest.mark.parametrize(
    "answer", [SCHEMA, Constraint("regex", "(?s:.*)!"), Constraint("choice", '["!"]')]
)
@pytest.mark.parametrize("dialect", ["v4", "v4.1"])
def test_text_beside_an_answer_is_that_answer_or_a_block_of_calls(answer, dialect: DialectName):
    constraint = tool_calls(TOOLS, dialect, required=False, answer=answer)
    grammar = compiled(constraint)
    good = '{"a": 1}' if answer.kind == "json_schema" else "!"
    opened = f"\n\n<{DSML}{DIALECTS[dialect].block}>\n"
    calls = opened + block(call("weather", {"city": "x"}, dialect), dialect=dialect)
    for text in (good, calls):
        assert satisfies(grammar, encode(text)), text
        assert check_finished(constraint, text) == ""
    for text in ("", "{}", f"{good}{calls}", f"{calls}\n", calls.replace("city", "town")):
        assert not satisfies(grammar, encode(text)), text
    if answer.kind != "regex":
        assert check_finished(constraint, "{}") != ""
    assert tool_calls(TOOLS, dialect, required=False).key != constraint.key


@pytest.mark.parametrize(
    ("kind", "required", "says"),
    [("ebnf", False, "use one of json_schema"), ("json_object", True, "a call is required")],
)
def test_answer_that_cannot_stand_beside_calls_is_refused(kind, required, says):
    with pytest.raises(RequestError, match=says):
        tool_calls(TOOLS, "v4.1", required=required, answer=Constraint(kind, ""))


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([], "at least one tool"),
        ([Tool("a"), Tool("a")], "tools[1].name 'a' is taken"),
        ([Tool('a"')], "without quotes"),
        ([Tool("a\n")], "without quotes"),
        ([Tool("f", {"type": "array"}, True)], "tools[0] (f): json schema at #: type 'array'"),
        ([Tool("f", {"additionalProperties": True}, True)], "additionalProperties must be false"),
        ([Tool("f", {"minProperties": 1}, True)], "minProperties is not possible"),
        ([Tool("f", {"properties": {}, "required": ["a"]}, True)], "required ['a']"),
        ([Tool("f", {"properties": {"a": {"contains": {}}}}, True)], "#/properties/a: contains"),
        ([Tool("f", {"properties": {'"': {}}}, True)], "cannot be written"),
        ([Tool("f", {"properties": {"a": False}}, True)], "no value is possible for 'a'"),
        ([Tool("f", {"properties": {"a": {"format": "uri", "type": "string"}}}, True)], "'uri'"),
        ([Tool("f", {"properties": {"a": {"const": f"x{CLOSING}"}}}, True)], "would end it"),
        ([Tool("f", {"properties": {"a": {"allOf": [{"type": "string"}]}}}, True)], "allOf"),
        ([Tool("f", {"a": object()}, True)], "no JSON Schema"),
    ],
)
def test_tools_that_cannot_be_enforced_are_refused(tools, says):
    with pytest.raises(RequestError) as refusal:
        required(tools)
    assert says in str(refusal.value)


def test_tokenizer_without_the_mark_is_refused():
    tokens = tiny_vocabulary()
    bare = type(tokens)(tokens.tokenizer_json.replace(DSML, "x-mark"), 29, [23])
    with pytest.raises(RequestError, match="lacks"):
        tool_start(bare, required=False)
