import json

import pytest
import torch

from deepinfer.engine.chat import ChatCodec
from deepinfer.eval import codec as eval_codec
from deepinfer.eval.draw import Draw
from deepinfer.eval.sets import tools
from deepinfer.nano import gates
from deepinfer.nano.build import random_directory
from deepinfer.nano.data import calls
from deepinfer.nano.data.dialogue import Dialogue, rendered_answer
from deepinfer.nano.gates import Gate, Part, Run, demands
from deepinfer.nano.without_index import with_random_indexer
from deepinfer.request import CompletionOutput, RequestMetrics, RequestOutput

SETS = ("invoice", "arith", "tools", "needle")


def run(value=1.0, accepted=3.0, error=0.01, sets=SETS, **values):
    parts = {
        name: Part(right, right, [right] * 8, accepted, (1, 1), 0, 0.0, ())
        for name in sets
        for right in [values.get(name, value)]
    }
    return Run(parts, accepted, error)


def missed(runs):
    return {gate.name.partition(":")[0] for gate in demands(runs) if not gate.passed}


def test_a_model_that_does_everything_passes_every_gate():
    runs = {
        "checkpoint": run(0.95),
        "random index": run(0.1, sets=["needle"]),
        "exact": run(0.955),
        "noquant": run(0.96),
    }
    assert len(demands(runs)) == 9
    assert not missed(runs)


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ({"checkpoint": run(0.95, invoice=0.89)}, {"invoice"}),
        ({"checkpoint": run(0.95, arith=0.89)}, {"arith"}),
        ({"checkpoint": run(0.95, tools=0.89)}, {"tools"}),
        ({"checkpoint": run(0.95, needle=0.79)}, {"needle"}),
        ({"checkpoint": run(), "random index": run(0.51, sets=["needle"])}, {"needle"}),
        ({"checkpoint": run(0.95), "exact": run(0.97)}, {"bounded replay against exact, distance"}),
        ({"checkpoint": run(accepted=2.4)}, {"drafts"}),
        ({"checkpoint": run(error=0.04)}, {"drafts"}),
    ],
)
def test_each_gate_can_be_missed(runs, names):
    assert missed(runs) == names


def test_engines_are_compared_on_the_questions_that_both_were_asked():
    first, second = run(), run(0.5)
    first.parts["arith"].points[4:] = [0] * 4
    second.parts["arith"].points[:] = [1, 0]
    assert first.ahead_of(second) == pytest.approx(0.5)


def test_a_line_says_which_side_of_the_bound_is_good():
    assert Gate("a", 0.9, 0.9).line().split() == ["ok", "a", "0.9000", ">=", "0.9000"]
    assert Gate("a", 0.9, 0.8, at_most=True).line().startswith("MISSED")


class Parrot:
    """An engine that gives known answers; every second one is cut off after its first token."""

    def __init__(self, answers):
        self._answers = answers
        self._count = 0

    def get_metrics(self):
        verified = (self._count, self._count // 2)
        return {
            "drafts_verified_at": verified,
            "drafts_accepted": 2 * self._count,
            "calibration_error": 0.02,
        }

    def generate(self, prompts, sampling_params, *, use_tqdm=True, on_output=None):
        outputs = []
        for place, (prompt, answer) in enumerate(zip(prompts, self._answers, strict=True)):
            self._count += 1
            ids = tuple(answer[:1] if place % 2 else answer)
            reason = "length" if place % 2 else "stop"
            done = CompletionOutput(0, "", ids, finish_reason=reason)
            times = RequestMetrics(0.0, 0.0, 1.0)
            output = RequestOutput(str(place), None, tuple(prompt), (done,), metrics=times)
            outputs.append(output)
            assert on_output is not None
            on_output(place, output)
        return outputs


def test_answers_are_scored_and_drafts_counted(tokenizer_json):
    text = tokenizer_json
    questions = [q for q in tools.questions(60, 5) if q.facts["group"] == "one call"][:6]
    tokenizer = ChatCodec(text).tokenizer
    answers = []
    for question in questions:
        said = calls._exchange(Draw("any"), question)[len(question.messages)]
        rendered = rendered_answer(Dialogue([*question.messages, said]))
        answers.append(tokenizer.encode_prompt(rendered))
    found = gates.measure(Parrot(answers), eval_codec.ChatCodec(text), {"tools": questions})
    part = found.parts["tools"]
    assert (part.right, part.share, part.errors) == (0.5, 0.5, 0)
    assert (found.accepted, part.accepted, found.calibration_error) == (3.0, 3.0, 0.02)
    assert part.points == [1, 0, 1, 0, 1, 0]
    assert len(part.wrong) == 3
    assert json.loads(json.dumps(part.wrong))[0]["finish_reason"] == "length"


def test_look_ups_are_as_long_as_asked_for_in_tokens(tokenizer_json):
    codec = eval_codec.ChatCodec(tokenizer_json)
    (question,) = gates.fresh_questions(codec, {"needle": 1}, 3, 1500)["needle"]
    assert abs(len(codec.prompt(question, gates.TASKS["needle"].settings)) - 1500) < 75


def same(first, second):
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def test_only_the_indexers_are_replaced(tmp_path):
    from safetensors.torch import load_file

    model = random_directory(tmp_path / "cache")
    copy = with_random_indexer(model, tmp_path / "copy", 1)
    before, after = (
        {name: t for file in sorted(where.glob("*.safetensors")) for name, t in load(file)}
        for where, load in ((model, lambda f: load_file(f).items()),
                            (copy, lambda f: load_file(f).items()))
    )  # fmt: skip
    assert before.keys() == after.keys()
    changed = {name for name in before if not same(before[name], after[name])}
    assert changed == {name for name in before if ".attn.indexer." in name}


def test_start_temperatures_are_those_of_the_checkpoint(tmp_path):
    assert gates.start_temperature(tmp_path) == 1.0
    (tmp_path / "calibration.json").write_text('{"temperature": [1.5, 2]}', encoding="utf-8")
    assert gates.start_temperature(tmp_path) == [1.5, 2]
