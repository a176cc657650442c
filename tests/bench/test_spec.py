"""`deepinfer bench spec`: its parts are repeatable, and what they say is what the marks want."""

import json

import pytest

from deepinfer.bench import spec, spec_model
from deepinfer.bench.simulate.drafts import DraftLaw
from deepinfer.bench.spec_nano import gain
from deepinfer.bench.spec_rules import LAWS, lengths
from deepinfer.cli.bench import below_marks
from tests.model.networks import network


@pytest.mark.parametrize(
    ("cost", "acceptance", "rows"),
    [("tiles", 0.75, 16), ("rank", 0.5, 32)],
)
def test_adaptive_drafts_are_nearly_as_fast_as_the_best_fixed_number(cost, acceptance, rows):
    found = spec.point(cost, acceptance, rows, steps=200)
    assert found["ratio"] >= 0.97
    assert found["cold"] >= 0.97
    assert len(found["rates"]) == spec_model.MOST + 1
    assert found["fixed"] == max(found["rates"]) == found["rates"][found["best"]]
    assert spec_model.pace(spec_model.COSTS[cost], (acceptance,), rows, None, steps=200).warm == (
        pytest.approx(found["adaptive"], abs=0.5)
    )


@pytest.mark.slow
def test_the_whole_cost_model_meets_its_marks():
    points = list(spec._model())
    assert len(points) == 36
    marks: dict[str, dict[str, float]] = {
        point["name"]: {"ratio": 0.97, "cold": 0.97} for point in points
    }
    marks |= {f"spec mix {cost}": {"gain": 1.0} for cost in spec_model.COSTS}
    assert below_marks([*points, *spec._mix()], marks) == []


def test_match_gives_at_least_nine_tenths_of_ratio_and_block_more_than_both():
    for law, wanted in zip(LAWS, (0.5, 0.75, 0.9), strict=True):
        found = lengths(*law, blocks=600)
        assert found.overlap == pytest.approx(wanted, abs=0.05)
        assert found.match >= 0.9 * found.ratio
        assert found.greedy < found.match < found.block
        assert found.block > found.ratio


def test_a_gain_is_measured_with_answers_that_drafts_do_not_change():
    found = gain(network(), 2, 3, 0.9, tokens=16)  # raises if a token differs
    assert found.predicted > 0
    assert found.measured > 0
    assert found.agreement == pytest.approx(found.measured / found.predicted, abs=2e-3)


def test_drafts_of_a_law_are_right_as_often_as_said_and_say_so():
    import numpy as np

    streams = np.arange(200, dtype=np.uint64)[:, None]
    positions = np.broadcast_to(np.arange(50, dtype=np.uint64), (200, 50))
    for boast in (1.0, 2.0):
        right, told = DraftLaw([0.7], boast=boast).draw(streams, positions)
        assert right.mean() == pytest.approx(0.7, abs=0.015)
        chance = 1 / (1 + np.exp(-told / boast))
        for low in (0.2, 0.5, 0.8):
            chosen = (chance > low) & (chance < low + 0.1)
            assert right[chosen].mean() == pytest.approx(chance[chosen].mean(), abs=0.06)
    mixed, _ = DraftLaw([0.2, 0.9]).draw(streams, positions)
    assert mixed[::2].mean() == pytest.approx(0.2, abs=0.03)
    assert mixed[1::2].mean() == pytest.approx(0.9, abs=0.03)
    for sure in (0, 1):
        right, told = DraftLaw([sure]).draw(streams, positions)
        assert right.mean() == sure
        assert np.isfinite(told).all()


def test_the_worst_of_every_ratio_is_told_last(capsys):
    records = [
        {"name": "a", "ratio": 0.99, "cold": 0.98},
        {"name": "b", "ratio": 1.02, "gain": 1.03, "cold": 1.0},
        {"name": "c", "of_ratio": 0.95, "agreement": 0.9, "match": 0.1},
    ]
    worst = spec._worst(records, json=True)
    assert worst == json.loads(capsys.readouterr().out)
    assert worst["ratio"] == 0.99
    assert (worst["gain"], worst["of_ratio"], worst["agreement"]) == (1.03, 0.95, 0.9)
