"""Runs over back-ends of our own making: what is asked, kept, resumed and scored."""

import contextlib

import pytest

from deepinfer.errors import ConfigError, RequestError
from deepinfer.eval.backend import OfflineBackend
from deepinfer.eval.question import Ask, Question, Reply, Settings
from deepinfer.eval.run import collect, judged_by_rules, settings_record, verdict_records
from deepinfer.eval.samples import SampleFile, read
from deepinfer.eval.tasks import TASKS, Wish
from deepinfer.request import CompletionOutput, FinishReason, RequestMetrics, RequestOutput

ARITH = TASKS["arith"]
SETTINGS = Settings(max_tokens=8)
WISH = Wish(data=None, limit=6, samples=2, seed=4)


class Answers:
    """A back-end that answers with the target, or fails or stops where it is told to."""

    def __init__(self, *, errors=(), stop_after=None):
        self.asked: list[Ask] = []
        self._errors = errors
        self._stop_after = stop_after

    def answer(self, asks, deliver):
        for place, ask in enumerate(asks):
            if place == self._stop_after:
                raise KeyboardInterrupt
            self.asked.append(ask)
            if ask.question.place in self._errors:
                deliver(place, Reply(error="no response", attempts=3))
            else:
                deliver(place, Reply(content=f"= {ask.question.target}", finish_reason="stop"))

    def opened(self):
        return contextlib.nullcontext((self, 1))


def go(path, backend, wish=WISH):
    record = settings_record(ARITH, SETTINGS, wish.seed, "m", {})
    file = SampleFile(path, record, resume=True)
    ticks = iter(range(10_000))
    try:
        return collect(
            ARITH.questions(wish),
            file,
            SETTINGS,
            wish.seed,
            backend.opened,
            clock=lambda: float(next(ticks)),
        )
    finally:
        file.close()


def test_every_sample_of_every_problem_is_asked_once_with_a_seed_of_its_own(tmp_path):
    backend = Answers()
    assert go(tmp_path / "x", backend) == 12
    seeds = [ask.seed for ask in backend.asked]
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    history = read(tmp_path / "x")
    verdicts = judged_by_rules(ARITH, history)
    assert all(verdict.correct for verdict in verdicts.values())
    assert [sample.at for sample in history.samples] == list(range(1, 13))


def test_an_interrupted_run_goes_on_where_it_stopped_with_the_same_seeds(tmp_path):
    whole, cut = Answers(), Answers(stop_after=5)
    go(tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "x", cut)
    rest = Answers()
    assert go(tmp_path / "x", rest) == 7
    assert cut.asked + rest.asked == whole.asked
    nothing = Answers(stop_after=0)
    assert go(tmp_path / "x", nothing) == 0
    assert len(read(tmp_path / "x").sessions) == 2


def test_errors_are_records_and_are_asked_again(tmp_path):
    go(tmp_path / "x", Answers(errors={("2", 1), ("3", 0)}))
    verdicts = judged_by_rules(ARITH, read(tmp_path / "x"))
    wrong = {place: verdict.reason for place, verdict in verdicts.items() if not verdict.correct}
    assert wrong == dict.fromkeys([("2", 1), ("3", 0)], "error: no response")
    assert go(tmp_path / "x", Answers()) == 2
    assert all(v.correct for v in judged_by_rules(ARITH, read(tmp_path / "x")).values())


def test_a_run_may_grow_in_problems_and_samples(tmp_path):
    go(tmp_path / "x", Answers())
    grown = Answers()
    assert go(tmp_path / "x", grown, Wish(None, 7, 3, 4)) == 21 - 12
    session = read(tmp_path / "x").sessions[-1]
    assert (session.samples, session.problems) == (3, 7)


def test_an_error_is_wrong_even_if_an_answer_came_with_it():
    reply = Reply(content="5", error="ended early")
    assert ARITH.verdict(5, {}, Reply(content="5")).correct
    assert not ARITH.verdict(5, {}, reply).correct


def test_samples_of_another_set_are_not_scored(tmp_path):
    go(tmp_path / "x", Answers())
    with pytest.raises(ConfigError, match="samples of arith, not of invoice"):
        judged_by_rules(TASKS["invoice"], read(tmp_path / "x"))


def test_verdicts_are_records_beside_what_they_are_about(tmp_path):
    go(tmp_path / "x", Answers())
    history = read(tmp_path / "x")
    records = verdict_records(history, judged_by_rules(ARITH, history))
    assert len(records) == 12
    assert all(record["answer"] == str(record["target"]) for record in records)


@pytest.mark.parametrize(
    ("name", "wish", "message"),
    [
        ("aime2026", WISH, "--data"),
        ("arith", Wish("somewhere", None, 1, 0), "leave --data out"),  # pyright: ignore[reportArgumentType]
        ("arith", Wish(None, 0, 1, 0), "limit 0"),
        ("arith", Wish(None, 1, 0, 0), "samples 0"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(name, wish, message):
    with pytest.raises(ConfigError, match=message):
        TASKS[name].questions(wish)


def test_public_sets_are_made_from_the_rows_of_a_file(tmp_path):
    data = tmp_path / "aime.jsonl"
    data.write_text('{"problem": "2 + 3?", "answer": 5}\n{"problem": "1 + 1?", "answer": 2}\n')
    questions = TASKS["aime2026"].questions(Wish(data, None, 3, 0))
    assert [q.place for q in questions] == [
        ("0", 0),
        ("0", 1),
        ("0", 2),
        ("1", 0),
        ("1", 1),
        ("1", 2),
    ]
    assert len(TASKS["aime2026"].questions(Wish(data, 1, 3, 0))) == 3
    data.write_text('{"id": 7, "problem": "a", "answer": 5}\n' * 2)
    with pytest.raises(ConfigError, match="two problems have the key '7'"):
        TASKS["aime2026"].questions(Wish(data, None, 1, 0))


def test_items_that_cannot_be_asked_are_counted_and_not_asked(tmp_path):
    data = tmp_path / "hle.jsonl"
    row = '{"id": "%s", "question": "q", "answer": "a", "image": "%s"}\n'
    data.write_text(row % ("x", "") + row % ("y", "data:"))
    task, backend = TASKS["hle"], Answers()
    questions = task.questions(Wish(data, None, 2, 0))
    assert len(questions) == 3
    file = SampleFile(tmp_path / "s", {"task": "hle"}, resume=False)
    assert collect(questions, file, SETTINGS, 0, backend.opened) == 2
    file.close()
    session = read(tmp_path / "s").sessions[0]
    assert (session.problems, session.samples, session.skipped) == (1, 2, {"y": "needs an image"})
    file = SampleFile(tmp_path / "none", {"task": "hle"}, resume=False)
    with pytest.raises(ConfigError, match="every problem is skipped"):
        collect(questions[2:], file, SETTINGS, 0, backend.opened)
    file.close()


def test_the_defaults_are_those_of_the_published_protocols():
    assert {name: task.samples for name, task in TASKS.items() if task.public} == {
        "aime2026": 32,
        "gpqa-diamond": 4,
        "hle": 1,
    }
    assert all(task.settings.thinking for task in TASKS.values() if task.public)


class Engine:
    """Stands for `LLM`: gives back what it is told, in another order than it was asked."""

    def __init__(self, outputs):
        self.outputs = outputs
        self.calls = []

    def generate(self, prompts, sampling_params, *, use_tqdm=True, on_output=None):
        assert on_output is not None
        self.calls.append((prompts, sampling_params))
        for place in reversed(range(len(prompts))):
            on_output(place, self.outputs[place])
        return self.outputs


def output(ids=(5, 6, 1), *, error=None, reason: FinishReason = "stop"):
    completion = CompletionOutput(0, "", ids, finish_reason=reason)
    return RequestOutput(
        "0",
        None,
        (1, 2, 3, 4),
        () if error else (completion,),
        num_cached_tokens=2,
        metrics=RequestMetrics(arrival=1.0, finished=3.5),
        error=error,
    )


class Spelling:
    """A codec that spells ids out and refuses questions about nothing."""

    def __init__(self):
        self.sampling = {"detokenize": False}

    def prompt(self, question, settings):
        if question.key == "nothing":
            raise RequestError("nothing was asked")
        return [int(question.key)]

    def read(self, question, settings, ids, *, truncated):
        reason = "length" if truncated else "stop"
        return Reply(content=str(list(ids)), finish_reason=reason, prompt_tokens=99)


def test_the_offline_engine_gets_one_batch_and_its_results_become_replies():
    outputs = [
        output(),
        output(reason="length"),
        output(error="too long"),
        output(reason="abort"),
    ]
    engine = Engine(outputs)
    keys = ["10", "nothing", "11", "12", "13"]
    settings = Settings(max_tokens=9, temperature=0.5, top_p=0.9)
    asks = [Ask(Question(key, [], 0), settings, seed) for seed, key in enumerate(keys)]
    found: dict[int, Reply] = {}
    OfflineBackend(engine, Spelling()).answer(asks, found.__setitem__)
    ((prompts, params),) = engine.calls
    assert prompts == [[10], [11], [12], [13]]
    assert [(p.max_tokens, p.temperature, p.top_p) for p in params] == [(9, 0.5, 0.9)] * 4
    assert [p.seed for p in params] == [0, 2, 3, 4]
    assert not any(p.detokenize for p in params)
    assert [found[i].error for i in range(5)] == [
        None,
        "nothing was asked",
        None,
        "too long",
        "it ended by abort",
    ]
    assert found[0].content == "[5, 6]"  # without the end token
    assert found[2].content == "[5, 6, 1]"
    assert (found[0].truncated, found[2].truncated) == (False, True)
    counts = found[0].prompt_tokens, found[0].cached_tokens, found[0].completion_tokens
    assert counts == (4, 2, 3)
    assert found[0].seconds == 2.5
