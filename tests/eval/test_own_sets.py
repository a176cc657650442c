"""Sets made from a seed: the same everywhere, consistent in themselves, scored strictly."""

import json
from decimal import Decimal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import ConfigError
from deepinfer.eval.question import Call, Reply
from deepinfer.eval.sets import arith, invoice, needle, tools

MAKERS = {
    "arith": arith.questions,
    "invoice": invoice.questions,
    "tools": tools.questions,
    "needle": lambda count, seed: needle.questions(count, seed, [100, 200]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_question_i_depends_on_seed_and_i_alone(name):
    make = MAKERS[name]
    assert make(12, 5)[:7] == make(7, 5)
    assert make(12, 5) != make(12, 6)
    assert len({question.digest() for question in make(30, 0)}) >= 20  # "no call" ones repeat


def test_the_sets_are_the_same_on_every_machine():
    """Digests of this file's making: a change of a set must be seen, for it changes scores."""
    digests = {name: make(3, 1)[2].digest() for name, make in MAKERS.items()}
    assert digests == {
        "arith": "c49e911da9d9ce43",
        "invoice": "d27c5c4e7aef44dc",
        "needle": "27c4910261e739ad",
        "tools": "e913bfccf00e0616",
    }


def test_arithmetic_targets_agree_with_the_text():
    for question in arith.questions(200, 0):
        kind = question.facts["group"].split(",")[0]
        text = question.messages[0]["content"]
        signs = {"sum": "+", "difference": "-", "product": "×"}
        if kind in signs:
            first, second = text.split(signs[kind])
            a = int("".join(c for c in first if c.isdigit()))
            b = int("".join(c for c in second if c.isdigit()))
            assert question.target == {"sum": a + b, "difference": a - b, "product": a * b}[kind]
        else:
            assert question.target >= 0


@pytest.mark.parametrize(
    ("content", "correct"),
    [
        ("95", True),
        ("37 + 58 = 95", True),
        ("37加58等于95。", True),
        (r"\boxed{95}, as 90 + 5", True),
        ("5</think>95", True),
        ("95</think>94", False),
        ("95, because 37 + 58", False),
        ("-95", False),
        ("9 5", False),
        ("ninety-five", False),
    ],
)
def test_arithmetic_takes_the_box_or_the_last_number(content, correct):
    assert arith.score(95, {}, Reply(content=content)).correct is correct


def test_a_typeset_minus_sign_is_a_minus_sign():
    assert arith.score(-27, {}, Reply(content="71 - 98 = \N{MINUS SIGN}27")).correct


def test_invoices_add_up_and_follow_their_schema():
    for question in invoice.questions(60, 0):
        data = question.target
        jsonschema.validate(data, invoice.SCHEMA)
        cents = {k: Decimal(str(data[k])) for k in ("subtotal", "tax", "total")}
        for line in data["lines"]:
            price = Decimal(str(line["unit_price"]))
            assert price * line["quantity"] == Decimal(str(line["amount"]))
        assert sum(Decimal(str(line["amount"])) for line in data["lines"]) == cents["subtotal"]
        assert cents["subtotal"] + cents["tax"] == cents["total"]
        shown = question.messages[0]["content"]
        for text in (data["seller"], data["number"], data["currency"], f"{data['total']:,.2f}"):
            assert text in shown


@given(st.integers(0, 40), st.sampled_from(["{}", "```json\n{}\n```", "<think>x</think>{}"]))
def test_the_target_itself_is_a_right_answer(number, form):
    question = invoice.questions(41, 2)[number]
    content = form.format(json.dumps(question.target, ensure_ascii=False))
    verdict = invoice.score(question.target, question.facts, Reply(content=content))
    assert verdict.correct
    assert verdict.share == 1


SMALL = {"number": "A1", "lines": [{"item": "x", "quantity": 2}], "total": 3.5, "tax": 0}


@pytest.mark.parametrize(
    ("change", "share"),
    [
        ({"total": 3.4}, 4 / 5),
        ({"total": "3.5"}, 4 / 5),
        ({"lines": []}, 3 / 5),
        ({"lines": [{"item": "x", "quantity": 2}, {"item": "y", "quantity": 1}]}, 5 / 6),
        ({"more": 1}, 5 / 6),
        ({"number": "A1 "}, 4 / 5),
        ({"tax": None}, 4 / 5),
        ({"tax": False}, 4 / 5),
    ],
)
def test_every_wrong_field_of_an_invoice_costs_its_part(change, share):
    verdict = invoice.score(SMALL, {}, Reply(content=json.dumps(SMALL | change)))
    assert not verdict.correct
    # Fields: number, item, quantity, total, tax.
    assert verdict.share == pytest.approx(share)


def test_an_invoice_without_json_has_no_right_field():
    verdict = invoice.score(SMALL, {}, Reply(content="the total is 3.5"))
    assert (verdict.correct, verdict.share) == (False, 0)


def test_expected_calls_are_offered_and_follow_their_parameters():
    kinds = set()
    for question in tools.questions(120, 0):
        offered = {t["function"]["name"]: t["function"]["parameters"] for t in question.tools}
        kinds.add(question.facts["group"])
        for call in question.target.get("calls", []):
            schema = offered[call["name"]] | {"additionalProperties": False}
            jsonschema.validate(call["arguments"], schema)
    assert kinds == {"one call", "two calls", "answer", "no call"}


def test_a_result_that_has_to_be_stated_stands_in_the_conversation():
    answers = [q for q in tools.questions(120, 0) if "says" in q.target]
    assert answers
    for question in answers:
        asked, called, result = question.messages
        assert (asked["role"], called["role"], result["role"]) == ("user", "assistant", "tool")
        assert question.target["says"] in [str(v) for v in json.loads(result["content"]).values()]
        assert result["tool_call_id"] == called["tool_calls"][0]["id"]


OSLO = {"name": "get_weather", "arguments": {"city": "Oslo", "day": "today"}}
LIMA = {"name": "get_weather", "arguments": {"city": "Lima", "day": "today"}}


def made(*calls):
    return tuple(Call(call["name"], json.dumps(call["arguments"])) for call in calls)


@pytest.mark.parametrize(
    ("expected", "calls", "correct", "share"),
    [
        ([OSLO], made(OSLO), True, 1),
        ([OSLO, LIMA], made(LIMA, OSLO), True, 1),
        ([OSLO], made(LIMA), False, 0),
        ([OSLO], made(OSLO | {"name": "set_lamp"}), False, 0),
        ([OSLO], made(OSLO, OSLO), False, 1 / 2),
        ([OSLO, LIMA], made(OSLO), False, 1 / 2),
        ([OSLO], (), False, 0),
        ([OSLO], (Call("get_weather", '{"city": "Oslo"'),), False, 0),
        ([OSLO], (Call("get_weather", '["Oslo"]'),), False, 0),
        ([OSLO], (Call("get_weather", 'x {"city": "Oslo", "day": "today"}'),), False, 0),
        ([], made(OSLO), False, 0),
    ],
)
def test_calls_are_right_if_they_are_exactly_the_expected_ones(expected, calls, correct, share):
    reply = Reply(content="", calls=calls)
    verdict = tools.score({"calls": expected}, {}, reply)
    assert verdict.correct is correct
    assert verdict.share == pytest.approx(share)


def test_no_call_is_right_where_none_is_needed_but_silence_is_not():
    assert tools.score({"calls": []}, {}, Reply(content="Hello!")).correct
    assert not tools.score({"calls": []}, {}, Reply(content="")).correct


@pytest.mark.parametrize(
    ("says", "content", "correct"),
    [
        ("66", "There are 66 pieces.", True),
        ("66", "还有66件。", True),
        ("1234", "It is 1,234 EUR.", True),
        ("-7", "It will be \N{MINUS SIGN}7 degrees", True),
        ("7", "It will be -7 degrees", False),
        ("66", "There are 660 pieces.", False),
        ("66", "There are 166 pieces.", False),
        ("66", "66</think>I do not know", False),
        ("66", "", False),
    ],
)
def test_a_result_has_to_be_stated_as_a_number_of_its_own(says, content, correct):
    assert tools.score({"says": says}, {}, Reply(content=content)).correct is correct


def test_a_call_instead_of_the_answer_is_wrong():
    assert not tools.score({"says": "66"}, {}, Reply(content="66", calls=made(OSLO))).correct


def test_contexts_have_the_length_asked_for_and_one_fact_that_answers():
    for question in needle.questions(20, 0, [64, 500], bytes_per_token=5):
        text = question.messages[0]["content"]
        length = int(question.facts["group"].split()[0])
        assert length * 5 <= len(text.encode()) <= length * 5 + 400
        name = text.rpartition("number of the ")[2].partition("?")[0]
        facts = [s for s in text.split(". ") if f"number of the {name} is" in s]
        assert len(facts) == 1
        assert facts[0].partition(" is ")[2].startswith(f"{question.target}")


def test_facts_are_asked_for_in_every_quarter_of_the_context():
    quarters = [q.facts["quarter"] for q in needle.questions(80, 0, [1000])]
    assert min(quarters.count(quarter) for quarter in (1, 2, 3, 4)) >= 8


@pytest.mark.parametrize(("lengths", "size"), [([], 4), ([10], 4), ([100], 0.5), ([100], 1e9)])
def test_contexts_that_cannot_be_made_are_refused(lengths, size):
    with pytest.raises(ConfigError):
        needle.questions(1, 0, lengths, size)


@pytest.mark.parametrize(
    ("content", "correct"), [("12345", True), ("It is 12345.", True), ("12346", False), ("", False)]
)
def test_a_look_up_is_right_if_its_last_number_is(content, correct):
    assert needle.score(12345, {}, Reply(content=content)).correct is correct
