"""Steps predicted from tables: exact where laws are, honest where not; and the published curve."""

import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.bench.floors import Floors, Point, Rates
from deepinfer.bench.simulate import predict, published
from deepinfer.bench.simulate.cost import StepCost, StepWork
from deepinfer.bench.simulate.published import Guess
from deepinfer.bench.simulate.setup import release_arch
from deepinfer.bench.simulate.table_cost import prompt_cost, read_step_cost
from deepinfer.bench.simulate.tables import (
    Measured,
    StepShape,
    Tables,
    fit,
    interpolated,
    measured,
    predictions,
    read_points,
)
from deepinfer.cli import main
from deepinfer.errors import ConfigError

SCALE, BASE, TOKEN, DRAFT = 0.9, 1e-3, 2e-6, 0.5e-3
ARCH = release_arch()
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def operations(shape):
    """Power laws: what interpolation on logarithmic axes gives exactly."""
    found = {
        ("experts", "main"): 1e-4 * shape.experts**0.5 * shape.tokens**0.3,
        ("head", "main"): 3e-4,
        ("index_select", "main"): 1e-9 * shape.tokens * shape.length,
        ("sample", "main"): 1e-4,
    }
    if shape.drafts:
        found["experts", "draft"] = 1e-5 * shape.experts * shape.rows**0.5
    return found


def point(experts, rows, length, drafts, *, known=True):
    shape = StepShape(experts, rows, length, drafts)
    every = operations(shape)
    seconds = SCALE * sum(every.values()) + BASE + TOKEN * shape.tokens + DRAFT * (drafts > 0)
    return Measured(shape, seconds, every if known else {})


KNOWN = [
    point(experts, rows, length, drafts)
    for experts in (6, 48)
    for rows, length, drafts in ((1, 1000, 0), (64, 4000, 0), (8, 4000, 3), (64, 1000, 3))
]


@given(
    experts=st.sampled_from([6, 12, 24, 48]),
    rows=st.integers(8, 64),
    length=st.integers(1000, 4000),
    drafts=st.sampled_from([0, 1, 3]),
)
@settings(max_examples=50)
def test_power_laws_and_constants_are_found_exactly(experts, rows, length, drafts):
    model = fit(KNOWN)
    assert model.constants == pytest.approx((SCALE, BASE, TOKEN, DRAFT), rel=1e-6)
    [found] = predictions(model, [point(experts, rows, length, drafts, known=False)])
    assert abs(found.error) < 1e-6


@given(
    st.lists(st.floats(1, 1e4), min_size=2, max_size=6, unique=True),
    st.floats(1e-6, 1),
    st.floats(0, 2),
    st.floats(1.0, 1e5),
)
def test_between_places_a_power_law_is_kept_and_below_them_nothing_shrinks(
    places, factor, power, at
):
    places = sorted(places)
    curve = [(place, factor * place**power) for place in places]
    expected = factor * max(at, places[0]) ** power
    found = interpolated(curve, at)
    if at <= places[-1] or places[-1] / places[-2] > 1.01:
        assert found == pytest.approx(expected, rel=1e-6)
    for place, value in curve:
        assert interpolated(curve, place) == pytest.approx(value)


def test_a_constant_that_would_be_negative_is_left_out():
    spoiled = [Measured(p.shape, sum(p.operations.values()) * 0.5, p.operations) for p in KNOWN]
    model = fit(spoiled)
    assert min(model.constants) >= 0
    assert model.scale == pytest.approx(0.5, rel=0.05)


def test_experts_that_were_not_measured_are_refused():
    with pytest.raises(ConfigError, match=r"96 experts: experts was measured with \[6, 48\]"):
        fit(KNOWN).seconds(StepShape(96, 8, 1000, 0))


def test_too_few_points_are_refused():
    with pytest.raises(ConfigError, match="3 points: 4 constants"):
        fit(KNOWN[:3])
    with pytest.raises(ConfigError, match="--operations"):
        fit([point(6, 1, 1000, 0, known=False)])
    with pytest.raises(ConfigError, match="one point"):
        predict.split(KNOWN[:1])


def records(points):
    """As `bench decode --json` writes them."""
    lines = []
    for each in points:
        shape = each.shape._asdict()
        sample = operations(each.shape)["sample", "main"] * 1e3
        lines.append(shape | {"step_ms": each.seconds * 1e3, "sample_ms": sample, "floor_ms": 1.0})
        lines += [
            shape | {"operation": name, "part": part, "us": seconds * 1e6}
            for (name, part), seconds in each.operations.items()
            if name != "sample"
        ]
    return lines


def prompt_records(experts=6):
    """Three prompts on a line: 10 ms, 20 us a token, 10 ps a pair."""
    return [
        {
            "rows": 1,
            "length": cached + new,
            "uncached": new,
            "experts": experts,
            "floor_ms": 1.0,
            "step_ms": 10 + 0.02 * new + 1e-8 * (new * cached + new * (new + 1) / 2),
        }
        for new, cached in ((4096, 0), (4096, 10**5), (1024, 0))
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "points.jsonl"
    unknown = [point(6, 16, 2000, 0, known=False), point(48, 20, 2000, 3, known=False)]
    lines = [*records(KNOWN + unknown), *prompt_records()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_points_are_read_as_they_were_written(file):
    points = read_points(file)
    assert len(points) == len(KNOWN) + 2
    for found, expected in zip(points, KNOWN, strict=False):
        assert found.shape == expected.shape
        assert found.seconds == pytest.approx(expected.seconds)
        assert found.operations == pytest.approx(expected.operations)
    assert [p.operations for p in points[len(KNOWN) :]] == [{}, {}]


def test_the_command_predicts_reports_and_is_held_to_marks(file, tmp_path, capsys):
    marks = tmp_path / "marks.json"
    marks.write_text(json.dumps({"predict": {"worst_error": {"at_most": 1e-3}}}))
    line = ["bench", "predict", "--points", str(file)]
    assert main([*line, "--out", str(tmp_path), "--assert", str(marks)]) == 0
    text = capsys.readouterr().out
    assert "8 measured steps predict 2 others: median error 0.0%" in text
    assert "predicted, not measured" in text
    assert (tmp_path / "predict.md").read_text() == text
    found = json.loads((tmp_path / "predict.json").read_text())
    assert found["fitted_points"] == 8
    assert found["sensitivity"]["base"][1] == pytest.approx(-found["sensitivity"]["base"][0])
    marks.write_text(json.dumps({"predict": {"worst_error": {"at_most": -1}}}))
    assert main([*line, "--json", "--assert", str(marks)]) == 1


def test_a_cost_of_tables_gives_measured_steps_and_serves_a_trace(file, tmp_path, capsys):
    path = tmp_path / "cost.json"
    line = ["bench", "predict", "--points", str(file), "--cost", str(path)]
    assert main(line) == 2
    assert "--experts" in capsys.readouterr().err
    assert main([*line, "--experts", "6"]) == 0
    cost = read_step_cost(path)
    for each in KNOWN[:4]:
        rows, length, drafts = (int(value) for value in each.shape[1:])
        work = StepWork(0, 0, rows, rows * length, rows * drafts)
        assert cost.seconds(work) == pytest.approx(each.seconds)
    assert cost.seconds(StepWork(1024, 1024 * 1025 // 2, 0, 0, 0)) == pytest.approx(
        (10 + 0.02 * 1024 + 1e-8 * 1024 * 1025 / 2) * 1e-3
    )
    capsys.readouterr()
    trace = tmp_path / "trace.jsonl"
    request = {"prefix": "a", "prefix_tokens": 0, "prompt_tokens": 300, "output_tokens": 20}
    trace.write_text("".join(json.dumps(request | {"arrival": t}) + "\n" for t in (0.0, 0.1)))
    run = ["simulate", "--trace", str(trace), "--cost", str(path), "--json"]
    assert main(run) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["setup"]["cost"]["source"] == "tables of points.jsonl, 6 experts"
    assert report["throughput"]["output_tokens"] == 40


def test_costs_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"tables": [], "source": "x"}))
    with pytest.raises(ConfigError, match="no point has times"):
        read_step_cost(path)
    path.write_text(json.dumps({"tables": [["head", "main", 0, 1.0, 1e-3]]}))
    with pytest.raises(ConfigError, match="not tables of bench predict"):
        read_step_cost(path)
    path.write_text(json.dumps({"source": "a line", "base": 0.5}))
    assert read_step_cost(path) == StepCost(base=0.5, source="a line")
    with pytest.raises(ConfigError, match="measure three"):
        prompt_cost(prompt_records()[:2], 6)
    with pytest.raises(ConfigError, match="no 'sample_ms'"):
        measured([StepShape(6, 1, 1, 0)._asdict() | {"step_ms": 1.0}], "here")
    with pytest.raises(ConfigError, match="no records"):
        measured(prompt_records(), "here")


def test_the_shipped_cost_is_that_of_the_measured_steps():
    cost = read_step_cost(RESULTS / "h200-ep8-cost.json")
    points = json.loads((RESULTS / "h200-points.json").read_text())
    whole = [r for r in points if r.get("slice") == "ep8" and "step_ms" in r and "floor_ms" in r]
    decoding = [r for r in whole if r.get("drafts") in (0, 3)]
    prompts = [r for r in whole if r["kind"] == "prefill" and r["steps"] == 1]
    assert len(decoding) == 16
    assert len(prompts) == 8
    errors = []
    for r in decoding:
        work = StepWork(0, 0, r["rows"], r["rows"] * r["length"], r["rows"] * r["drafts"])
        errors.append(cost.seconds(work) * 1e3 / r["step_ms"] - 1)
    assert max(abs(e) for e in errors) < 0.09  # docs/simulate.md
    assert statistics.median(abs(e) for e in errors) < 0.03
    for r in prompts:
        new, cached = r["uncached"], r["length"] - r["uncached"]
        pairs = r["rows"] * (new * cached + new * (new + 1) // 2)
        work = StepWork(r["rows"] * new, pairs, 0, 0, 0)
        assert cost.seconds(work) * 1e3 == pytest.approx(r["step_ms"], rel=0.12)


def test_tables_survive_a_file():
    tables = Tables.of(KNOWN)
    again = Tables(tables.entries())
    shape = StepShape(6, 5, 1234, 3)
    assert again.seconds("main", shape) == tables.seconds("main", shape)


def test_published_steps_are_met_within_the_stated_error():
    found = {line.rows: line for line in published.curve(ARCH, Guess())}
    assert found[8].seconds == pytest.approx(10.0e-3, rel=0.01)
    assert found[256].seconds == pytest.approx(31.6e-3, rel=0.05)
    assert found[64].seconds == pytest.approx(14.9e-3, rel=0.03)
    assert found[64].gpu == pytest.approx(14.0e3, rel=0.03)
    overlapping = {line.rows: line for line in published.curve(ARCH, Guess(rule="max"))}
    assert all(overlapping[rows].seconds < found[rows].seconds for rows in found)


def test_a_device_without_losses_takes_the_floor():
    rates = Rates(1e12, 1e15, 1e15)
    guess = Guess(rates, efficiency=1.0, overhead=0.0, rule="max")
    for rows in published.SHOWN:
        floor = Floors(ARCH, rates, 64).decode(Point(rows, 131072, 3)).seconds
        assert published.step_seconds(ARCH, rows, guess) == floor


def test_every_parameter_of_the_guess_moves_the_step_its_own_way():
    found = published.sensitivity(ARCH, Guess())
    assert set(found) == set(published.CHANGES)
    for name, values in found.items():
        for low, high in values:
            assert (low < 0 < high) == (name == "overhead")
            assert math.copysign(1, low) == -math.copysign(1, high)
    # With little work the constant counts most, with much the rate of products.
    assert found["overhead"][0][1] > found["efficiency"][0][0]
    assert found["efficiency"][2][0] > found["overhead"][2][1]
