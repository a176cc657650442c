"""The judge's prompt and what its replies mean."""

import json

import pytest

from deepinfer.errors import ConfigError
from deepinfer.eval.judge import PROMPT, check_prompt, judge_questions, judged
from deepinfer.eval.question import Question, Reply, Sample, Verdict
from deepinfer.eval.samples import History, Session


def sample(key, reply, facts=None):
    question = Question(key, [], "the Earth", facts=facts or {"question": "Third planet?"})
    return Sample(key, 0, question.digest(), "the Earth", question.facts, 7, reply, 0, 1.0)


def test_the_judge_sees_question_target_and_answer_without_reasoning():
    facts = {"question": "What does {response} mean?"}
    history = History(
        [Session(0, {}, 1, 3, {}, 1)],
        [
            sample("a", Reply(content="Mars</think>Answer: {target} Earth"), facts),
            sample("b", Reply(error="no response")),
            sample("c", Reply(content="endless thoughts</think>")),
        ],
    )
    (question,) = judge_questions(history, "Q {question} T {target} R {response}")
    shown = "Q What does {response} mean? T the Earth R Answer: {target} Earth"
    assert question.messages[0]["content"] == shown
    assert question.place == ("a", 0)


def test_the_own_prompt_names_all_it_needs_and_another_must():
    assert check_prompt(PROMPT) == PROMPT
    with pytest.raises(ConfigError, match=r"lacks \{target\}, \{response\}"):
        check_prompt("only {question}")


GRADE = {
    "extracted_final_answer": "Earth",
    "reasoning": "same",
    "correct": "yes",
    "confidence": 70,
}


@pytest.mark.parametrize(
    ("content", "correct", "confidence", "reason"),
    [
        (json.dumps(GRADE), True, 0.7, None),
        (f"```json\n{json.dumps(GRADE)}\n```", True, 0.7, None),
        (json.dumps(GRADE | {"correct": "No"}), False, 0.7, "judged wrong"),
        (json.dumps(GRADE | {"correct": True, "confidence": "85 %"}), True, 0.85, None),
        (json.dumps(GRADE | {"correct": False}), False, 0.7, "judged wrong"),
        ("reasoning: same\ncorrect: yes\nconfidence: 30", True, 0.3, None),
        ('"correct": "yes"</think>correct: no', False, 1.0, "judged wrong"),
        ("I think so", False, 0.9, "not graded by the judge"),
        (json.dumps(GRADE | {"correct": "perhaps"}), False, 0.9, "not graded by the judge"),
    ],
)
def test_the_word_of_the_judge_counts(content, correct, confidence, reason):
    rules = {("a", 0): Verdict(False, 0.0, "Earth!", "another answer", 0.9)}
    (verdict,) = judged(rules, [sample("a", Reply(content=content))]).values()
    assert (verdict.correct, verdict.share) == (correct, float(correct))
    assert (verdict.confidence, verdict.reason) == (confidence, reason)


def test_rules_stay_where_the_judge_was_not_asked_and_an_error_grades_nothing():
    rules = {("a", 0): Verdict(True, 1.0, "Earth"), ("b", 0): Verdict(True, 1.0, "Earth")}
    result = judged(rules, [sample("a", Reply(error="HTTP 500")), sample("z", Reply())])
    assert result["b", 0] == rules["b", 0]
    assert not result["a", 0].correct
    assert set(result) == set(rules)
