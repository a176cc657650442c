"""Figures from verdicts: pass@1, errors of it, device time and money."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import ConfigError
from deepinfer.eval.price import PriceSheet, Use, cost_of, read_price_sheet
from deepinfer.eval.question import Reply, Sample, Verdict
from deepinfer.eval.samples import History, Session
from deepinfer.eval.summary import calibration_error, standard_error, summarise


def sample(key, number=0, *, session=0, at=1.0, facts=None, **reply):
    values = {"content": "x", "finish_reason": "stop", "prompt_tokens": 10, **reply}
    return Sample(key, number, "d", 1, facts or {}, 7, Reply(**values), session, at)


def session(number=0, samples=1, problems=1, devices: int | None = 1, skipped=None):
    return Session(number, {"task": "t"}, samples, problems, skipped or {}, devices)


def verdict(correct, share=None, confidence=None):
    return Verdict(correct, float(correct) if share is None else share, confidence=confidence)


def test_a_run_worked_by_hand():
    samples = [
        sample("a", 0, at=2.0, completion_tokens=4, seconds=1.0),
        sample("a", 1, at=3.0, completion_tokens=8, seconds=2.0, finish_reason="length"),
        sample("b", 0, at=4.0, error="no response", seconds=3.0, attempts=5, prompt_tokens=None),
        sample("b", 0, session=1, at=6.0, completion_tokens=12, seconds=4.0),
        sample("b", 1, session=1, at=5.0, error="HTTP 500", seconds=9.0, prompt_tokens=None),
    ]
    sessions = [session(0, 2, 3, devices=2), session(1, 2, 3, devices=1, skipped={"c": "image"})]
    verdicts = {
        ("a", 0): verdict(True),
        ("a", 1): verdict(False, 0.5),
        ("b", 0): verdict(False),
        ("b", 1): verdict(False),
    }
    summary = summarise(History(sessions, samples), verdicts, PriceSheet("EUR", 3600))
    assert summary.score.pass_at_1 == 0.25
    # Problem means 1/2 and 0: deviations 1/4 each, variance 1/8, over 2 problems.
    assert summary.score.standard_error == pytest.approx(math.sqrt(1 / 8 / 2))
    assert summary.score.share == pytest.approx((0.75 + 0) / 2)
    assert (summary.score.problems, summary.score.samples, summary.score.solved) == (2, 4, 1)
    assert (summary.errors, summary.missing, summary.skipped) == (1, 2, 1)
    assert summary.truncation_rate == pytest.approx(1 / 3)
    assert summary.completion_tokens == 8
    assert summary.score.prompt_tokens == 10
    # Session 0 took 4 s on two devices, session 1 took 6 s on one.
    assert summary.wall_seconds == 10
    assert summary.use.device_seconds == 14
    assert summary.use.completion_tokens == 24
    assert summary.attempts_per_success == 9
    assert summary.cost is not None
    assert (summary.cost.owner, summary.cost_per_success) == (14, 14)
    assert (summary.seconds_p50, summary.seconds_p95) == (2, 9)
    assert summary.groups == {}


def test_groups_are_scored_apart():
    samples = [sample(str(i), facts={"group": "ab"[i % 2]}) for i in range(6)]
    verdicts = {s.place: verdict(s.facts["group"] == "a") for s in samples}
    summary = summarise(History([session(problems=6)], samples), verdicts)
    assert {name: score.pass_at_1 for name, score in summary.groups.items()} == {"a": 1, "b": 0}
    assert summary.score.pass_at_1 == 0.5


def test_problems_weigh_the_same_however_many_samples_they_have():
    samples = [sample("a", i) for i in range(3)] + [sample("b")]
    verdicts = {s.place: verdict(s.key == "b") for s in samples}
    assert summarise(History([session()], samples), verdicts).score.pass_at_1 == 0.5


def test_nothing_finished_has_no_cost_of_a_finished_task():
    summary = summarise(
        History([session(devices=None)], [sample("a")]),
        {("a", 0): verdict(False)},
        PriceSheet("EUR", 1),
    )
    assert summary.use.device_seconds is None
    assert summary.device_seconds_per_success is None
    assert summary.attempts_per_success is None
    assert summary.cost is not None
    assert summary.cost.owner is None
    assert summary.cost_per_success is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_the_standard_error_is_what_resampling_problems_gives(means):
    """The variance of a resampled mean is the population variance over n, exactly."""
    count = len(means)
    mean = sum(means) / count
    bootstrap = math.sqrt(sum((x - mean) ** 2 for x in means) / count / count)
    error = standard_error(means)
    assert error == pytest.approx(bootstrap * math.sqrt(count / (count - 1)), abs=1e-12)
    assert standard_error(means[:1]) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_calibration_is_off_by_at_most_one_and_by_nothing_for_the_sure_and_right(pairs):
    error = calibration_error([verdict(c, confidence=p) for p, c in pairs])
    assert error is not None
    assert 0 <= error <= 1
    assert calibration_error([verdict(True, confidence=1.0)] * len(pairs)) == 0
    assert calibration_error([verdict(False, confidence=1.0)] * len(pairs)) == 1
    assert calibration_error([verdict(True)]) is None


def test_calibration_worked_by_hand():
    stated = [(0.9, True), (0.95, False), (0.2, False)]
    # Bin 9: |1.85 - 1|, bin 2: |0.2 - 0|.
    error = calibration_error([verdict(c, confidence=p) for p, c in stated])
    assert error == pytest.approx((0.85 + 0.2) / 3)


def test_an_hour_of_one_device_worked_by_hand():
    sheet = PriceSheet(
        "EUR",
        device_hour=2,
        device_watts=500,
        energy_kwh=0.4,
        staff_hour=60,
        staff_share=0.05,
        prompt_million=1,
        cached_million=0.1,
        completion_million=3,
    )
    cost = cost_of(Use(3600, 3_000_000, 1_000_000, 500_000), sheet)
    assert (cost.device, cost.energy, cost.staff) == (2, pytest.approx(0.2), pytest.approx(3))
    assert cost.owner == pytest.approx(5.2)
    assert cost.list_price == pytest.approx(2 * 1 + 1 * 0.1 + 0.5 * 3)


def test_a_price_sheet_is_read_from_toml(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('currency = "USD"\ndevice_hour = 2.5\n')
    assert read_price_sheet(path) == PriceSheet("USD", 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('currency = "USD"', "device_hour"),
        ('currency = "USD"\ndevice_hour = 1\nhours = 2', r"unknown key\(s\) \['hours'\]"),
        ('currency = "USD"\ndevice_hour = -1', "device_hour = -1"),
        ('currency = "USD"\ndevice_hour = nan', "device_hour = nan"),
        ('currency = "USD"\ndevice_hour = true', "device_hour = True"),
        ('currency = ""\ndevice_hour = 1', "currency"),
        ('currency = "USD"\ndevice_hour = 1\nstaff_share = 2', "staff_share"),
        ('currency = "USD"\ndevice_hour = 1\nprompt_million = 2', "give all of"),
        ("not toml", "cannot read"),
    ],
)
def test_a_price_sheet_that_cannot_be_meant_is_refused(tmp_path, text, message):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_price_sheet(path)
