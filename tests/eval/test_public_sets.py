"""AIME, GPQA and HLE: questions from rows of our own making, right and wrong answers."""

import pytest

from deepinfer.errors import ConfigError
from deepinfer.eval.question import Reply
from deepinfer.eval.sets import aime, gpqa, hle

AIME = [
    {"problem_idx": 4, "problem": "How many legs have 18 spiders?", "answer": 144},
    {"problem": "What is 5 + 2?", "answer": "007"},
]
GPQA = {
    "Record ID": "rec1",
    "Question": "Which metal is liquid at room temperature?",
    "Correct Answer": "mercury\n",
    "Incorrect Answer 1": "iron",
    "Incorrect Answer 2": "zinc",
    "Incorrect Answer 3": "gold",
}
HLE = {
    "id": "h1",
    "question": "Name the third planet.",
    "image": "",
    "answer": "the Earth",
    "answer_type": "exactMatch",
    "category": "Other",
}


def test_aime_rows_become_questions_with_integer_targets():
    first, second = aime.questions(AIME)
    assert (first.key, first.target, second.key, second.target) == ("4", 144, "1", 7)
    assert "spiders" in first.messages[0]["content"]
    assert "boxed" in first.messages[0]["content"]


@pytest.mark.parametrize("answer", ["1000", -1, "1/2", "many"])
def test_an_aime_answer_that_is_no_such_integer_is_refused(answer):
    with pytest.raises(ConfigError, match=r"row 0: answer .* 0\.\.999"):
        aime.questions([{"problem": "p", "answer": answer}])


@pytest.mark.parametrize(
    ("content", "correct"),
    [
        (r"thus \boxed{073}", True),
        (r"first \boxed{5}, no: \boxed{73}", True),
        (r"reasoning \boxed{5}</think> \boxed{73}", True),
        ("so the result is $73$", True),
        (r"\boxed{x=73}", True),
        (r"\boxed{73}</think>I do not know", False),
        (r"<think>\boxed{73}", False),
        (r"first \boxed{73}, no: \boxed{5}", False),
        (r"\boxed{1073}", False),
        (r"\boxed{73.5}", False),
        (r"\boxed{-73}", False),
        (r"\boxed{70+3}", False),
        ("73", False),
        ("", False),
    ],
)
def test_aime_takes_the_last_box_of_the_answer(content, correct):
    verdict = aime.score(73, {}, Reply(content=content))
    assert verdict.correct is correct
    assert (verdict.reason is None) is correct


def test_gpqa_orders_depend_on_seed_problem_and_sample_alone():
    questions = gpqa.questions([GPQA, GPQA | {"Record ID": "rec2"}], seed=3, samples=20)
    assert [q.place for q in questions[:2]] == [("rec1", 0), ("rec1", 1)]
    assert questions[:5] == gpqa.questions([GPQA], seed=3, samples=5)
    orders = [tuple(q.facts["order"]) for q in questions]
    assert len(set(orders[:20])) > 8
    assert orders[:20] != orders[20:]
    assert orders != [tuple(q.facts["order"]) for q in gpqa.questions([GPQA], 4, 20)]
    assert {q.target for q in questions} == set("ABCD")


def test_the_gpqa_target_is_the_letter_before_the_right_option():
    for question in gpqa.questions([GPQA], seed=0, samples=30):
        shown = question.messages[0]["content"]
        assert f"\n{question.target}) mercury" in shown
        assert sorted(question.facts["order"]) == [0, 1, 2, 3]
        assert all(text in shown for text in ("iron", "zinc", "gold"))


@pytest.mark.parametrize(
    ("content", "correct"),
    [
        ("Answer: B", True),
        ("I first thought Answer: A.\nAnswer: B", True),
        ("Answer: A</think>Answer: B", True),
        ("Answer: B</think>Answer: C", False),
        ("Answer: B or rather\nAnswer: D", False),
        ("Barium", False),
        ("", False),
    ],
)
def test_gpqa_takes_the_last_letter_after_the_thinking(content, correct):
    assert gpqa.score("B", {}, Reply(content=content)).correct is correct


def test_hle_items_with_an_image_are_skipped_and_say_why():
    plain, image = hle.questions([HLE, HLE | {"id": "h2", "image": "data:image/png;base64,AA"}])
    assert plain.skipped is None
    assert image.skipped == "needs an image"
    assert (plain.key, plain.target, plain.facts["group"]) == ("h1", "the Earth", "Other")
    assert "Confidence" in plain.messages[0]["content"]


@pytest.mark.parametrize(
    ("answer", "target", "same"),
    [
        ("The  Earth.", "the earth", True),
        ("$x^2 + 1$", "x^2+1", True),
        (r"\boxed{\text{Blue}}", "blue", True),
        ("0.50", "0.5", True),
        ("1,000", "1000", True),
        ("２", "2", True),
        ("Earth", "Mars", False),
        ("x^2+1", "x^2-1", False),
        ("0.5", "0.51", False),
        ("Infinity", "inf", False),
        ("", "", False),
    ],
)
def test_short_answers_are_compared_after_tidying(answer, target, same):
    assert hle.same_answer(answer, target) is same
    assert hle.same_answer(target, answer) is same


@pytest.mark.parametrize(
    ("kind", "target", "content", "correct", "confidence"),
    [
        ("exactMatch", "Earth", "Explanation: e\nExact Answer: earth\nConfidence: 80%", True, 0.8),
        ("exactMatch", "Earth", "**Exact Answer:** Earth", True, 1.0),
        ("exactMatch", "Earth", "Answer: Mars\nConfidence: 12.5 %", False, 0.125),
        ("exactMatch", "Earth", "Earth, I would say", False, 1.0),
        ("exactMatch", "Earth", "Exact Answer: Earth</think>Exact Answer: Mars", False, 1.0),
        ("multipleChoice", "E", "Answer: E\nConfidence: 300", True, 1.0),
        ("multipleChoice", "(E)", "Answer: E", True, 1.0),
        ("multipleChoice", "E", "Answer: F", False, 1.0),
    ],
)
def test_hle_scores_the_answer_field_and_reads_the_confidence(
    kind, target, content, correct, confidence
):
    verdict = hle.score(target, {"kind": kind}, Reply(content=content))
    assert (verdict.correct, verdict.confidence) == (correct, confidence)


@pytest.mark.parametrize(
    ("make", "row", "column"),
    [
        (aime.questions, {"question_text": "p", "answer": 1}, "problem"),
        (aime.questions, {"problem": "p"}, "answer"),
        (lambda rows: gpqa.questions(rows, 0, 1), {**GPQA, "Incorrect Answer 2": ""}, "Answer 2"),
        (lambda rows: gpqa.questions(rows, 0, 1), {"Question": "q"}, "Correct Answer"),
        (hle.questions, {"question": "q"}, "answer"),
    ],
)
def test_a_missing_or_empty_column_is_named_with_its_row(make, row, column):
    with pytest.raises(ConfigError, match=f"row 0: .*{column}"):
        make([row])
