"""A judge model decides whether a short answer says the same as the target.

Its replies are kept in a sample file of their own, so judging is resumed and scored again like
anything else. Knows nothing of how the judge is reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepinfer.errors import ConfigError
from deepinfer.eval.extract import after_thinking, field, json_object
from deepinfer.eval.question import Question, Reply, Sample, Settings, Verdict
from deepinfer.eval.samples import History

SETTINGS = Settings(max_tokens=4096)
PROMPT = """\
You compare an answer to an exam question with the official answer.

Question:
{question}

Official answer:
{target}

Answer to judge:
{response}

Find the final answer that was given, and decide whether it means the same as the official one. \
Small differences of form or of rounding are no mistakes; anything else is. Do not solve the \
question yourself. Reply with a JSON object of four keys: "extracted_final_answer" (text, or \
"none"), "reasoning" (one or two sentences on the difference), "correct" ("yes" or "no"), and \
"confidence" (the confidence that the answer states, a number from 0 to 100; 100 if it states \
none)."""
_PLACES = ("question", "target", "response")


def check_prompt(prompt: str) -> str:
    """The prompt, if it names all it needs.

    Raises:
        ConfigError: one of `{question}`, `{target}`, `{response}` is missing.
    """
    places = ["{" + name + "}" for name in _PLACES]
    if lacking := [place for place in places if place not in prompt]:
        raise ConfigError(f"the judge's prompt lacks {', '.join(lacking)}")
    return prompt


def judge_questions(history: History, prompt: str) -> list[Question]:
    """One question for the judge about every reply that has an answer.

    Args:
        history: samples whose facts hold the `question`.
        prompt: with the places `{question}`, `{target}` and `{response}`.
    """
    return [
        Question(
            sample.key,
            [{"role": "user", "content": _filled(prompt, sample)}],
            None,
            sample.sample,
        )
        for sample in history.latest().values()
        if sample.reply.error is None and after_thinking(sample.reply.content)
    ]


def _filled(prompt: str, sample: Sample) -> str:
    values = {
        "question": sample.facts["question"],
        "target": sample.target,
        "response": after_thinking(sample.reply.content),
    }
    # In one pass: what is put in may itself spell a place.
    return re.sub(r"\{(question|target|response)\}", lambda m: str(values[m[1]]), prompt)


def judged(
    verdicts: Mapping[tuple[str, int], Verdict], judgements: Sequence[Sample]
) -> dict[tuple[str, int], Verdict]:
    """Verdicts with the judge's word in place of the rules', where it gave one.

    Args:
        verdicts: by rules.
        judgements: the judge's latest replies.

    Returns:
        The same keys; a reply that the judge could not grade is wrong and says so.
    """
    result = dict(verdicts)
    for sample in judgements:
        if sample.place in result:
            result[sample.place] = _grade(sample.reply, result[sample.place])
    return result


def _grade(reply: Reply, by_rules: Verdict) -> Verdict:
    text = after_thinking(reply.content)
    fields: dict[str, Any] = json_object(text) or {
        name: field(text, name) for name in ("extracted_final_answer", "correct", "confidence")
    }
    grade = str(fields.get("correct", "")).strip().strip('"').casefold()
    answer = fields.get("extracted_final_answer") or by_rules.answer
    ungraded = reply.error is not None or grade not in ("yes", "no", "true", "false")
    correct = not ungraded and grade in ("yes", "true")
    reason = None if correct else "not graded by the judge" if ungraded else "judged wrong"
    if ungraded:
        return replace(by_rules, correct=False, share=0.0, reason=reason)
    return Verdict(
        correct,
        float(correct),
        None if answer is None else str(answer),
        reason,
        _confidence(fields.get("confidence")),
    )


def _confidence(value: object) -> float:
    found = re.search(r"\d+(?:\.\d+)?", str(value))
    return 1.0 if found is None else min(float(found[0]), 100.0) / 100
