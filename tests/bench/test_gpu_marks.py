"""Marks of GPU records: reached, missed, and left alone for trials."""

import pytest

from deepinfer.bench.gpu_marks import MARKS, markdown, marked


def row(name: str, of_floor: float, speedup: float | None = 9.0, *, trial: bool = False):
    return {
        "name": name, "ours_us": 2.0, "floor_us": 1.0, "floor": "weight read", "peer_us": 18.0,
        "of_floor": of_floor, "speedup": speedup, "trial": trial,
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(MARKS))
def test_every_mark_has_a_pass_below_its_aim(name):
    assert all(least < best for least, best in MARKS[name].values())


@pytest.mark.parametrize(
    ("of_floor", "speedup", "mark"),
    [(0.8, 5.0, "aim"), (0.8, 3.0, "pass"), (0.5, 2.8, "pass"), (0.49, 9.0, "below"),
     (0.9, 2.7, "below")],
)  # fmt: skip
def test_a_record_reaches_a_mark_only_in_all_its_fields(of_floor, speedup, mark):
    found = marked(row("experts E=6 T=64", of_floor, speedup))
    assert found["mark"] == mark
    assert found["pass"] == {"of_floor": 0.5, "speedup": 2.8}


def test_trials_and_unmarked_records_carry_no_mark():
    assert marked(row("experts E=6 T=64", 0.1, trial=True))["mark"] is None
    assert marked(row("head T=8", 0.1, None))["mark"] is None


def test_the_table_shows_records_but_no_trials():
    records = [
        marked(row("experts E=6 T=64", 0.6)),
        marked(row("experts E=6 T=8", 0.7, trial=True)),
        marked(row("head T=8", 0.9, None) | {"peer_us": None}),
    ]
    lines = markdown(records).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| experts E=6 T=64 | 2.0 | 1.0 | 0.60 |")
    assert lines[3] == "| head T=8 | 2.0 | 1.0 | 0.90 | weight read |  |  |  |"
