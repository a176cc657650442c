"""Floors against the printed tables of the performance facts (performance.md 3.4, 3.5, 3.7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.bench.floors import H200, SM100, Floors, Point, Prefill, Rates
from deepinfer.bench.simulate.setup import release_arch

ROWS = (1, 8, 32, 64, 128, 256)
# Ranks, context, drafts -> milliseconds at ROWS.
PRINTED = {
    (8, 32768, 0): (3.04, 7.53, 10.4, 10.7, 10.9, 11.9),
    (8, 32768, 3): (6.07, 10.97, 11.2, 13.1, 26.2, 52.4),
    (8, 131072, 0): (3.04, 7.56, 10.5, 10.9, 11.4, 12.6),
    (8, 131072, 3): (6.07, 11.0, 11.3, 13.8, 27.5, 55.0),
    (64, 32768, 0): (3.04, 3.07, 3.17, 3.31, 5.95, 11.9),
    (64, 32768, 3): (3.53, 3.56, 6.55, 13.1, 26.2, 52.4),
    (64, 131072, 0): (3.04, 3.10, 3.29, 3.56, 6.28, 12.6),
    (64, 131072, 3): (3.54, 3.59, 6.88, 13.8, 27.5, 55.0),
}
# B -> milliseconds of reading and of products: 64 SM100, 131,072 tokens, 3 drafts.
PRINTED_SM100 = {
    1: (1.89, 0.04),
    8: (1.93, 0.32),
    32: (2.04, 1.29),
    64: (2.18, 2.58),
    128: (2.46, 5.16),
    256: (3.02, 10.31),
}
# New and cached tokens -> TFLOP and milliseconds on the H200.
PRINTED_PREFILL = {
    (4096, 0): (73, 93),
    (4096, 28672): (75, 95),
    (4096, 126976): (80, 101),
    (131072, 0): (2379, 3020),
}
ARCH = release_arch()


@pytest.mark.parametrize("shape", PRINTED)
def test_floors_of_decoding_are_those_of_the_printed_table(shape):
    ranks, length, drafts = shape
    floors = Floors(ARCH, H200, ranks)
    found = [floors.decode(Point(rows, length, drafts)).seconds * 1e3 for rows in ROWS]
    assert found == pytest.approx(PRINTED[shape], rel=0.005)


def test_floors_of_another_device_are_those_of_the_printed_table():
    floors = Floors(ARCH, SM100, 64)
    for rows, printed in PRINTED_SM100.items():
        floor = floors.decode(Point(rows, 131072, 3))
        assert floor.memory * 1e3 == pytest.approx(printed[0], rel=0.01)
        assert floor.compute * 1e3 == pytest.approx(printed[1], rel=0.015)


def test_floors_of_prompts_are_those_of_the_printed_table():
    floors = Floors(ARCH, H200, 8)
    for (new, cached), (tera, milliseconds) in PRINTED_PREFILL.items():
        floor = floors.prefill(Prefill(new, cached))
        assert floor.flop * 1e-12 == pytest.approx(tera, rel=0.007)
        assert floor.seconds * 1e3 == pytest.approx(milliseconds, rel=0.005)
        assert floor.bound == "products"


def test_a_prompt_of_few_tokens_is_bound_by_reading():
    assert Floors(ARCH, H200, 8).prefill(Prefill(16, 1024)).bound == "read"


@given(
    rows=st.integers(1, 300),
    length=st.integers(1, 1 << 20),
    drafts=st.integers(0, 5),
    ranks=st.sampled_from([1, 8, 64]),
)
def test_a_floor_grows_with_everything_and_shrinks_with_rates(rows, length, drafts, ranks):
    point = Point(rows, length, drafts)
    base = Floors(ARCH, H200, ranks).decode(point)
    for more in (Point(rows + 1, length, drafts), Point(rows, length + 9, drafts)):
        other = Floors(ARCH, H200, ranks).decode(more)
        assert other.bytes >= base.bytes
        assert other.flop > base.flop or more.length > length
    faster = Rates(2 * H200.read, 2 * H200.matmul, 2 * H200.attention)
    assert Floors(ARCH, faster, ranks).decode(point).seconds == pytest.approx(base.seconds / 2)


def test_all_experts_are_touched_in_the_end_and_as_many_as_chosen_by_one_token():
    floors = Floors(ARCH, H200, 8)
    assert floors.distinct(1, 384, 6) == pytest.approx(6)
    assert floors.distinct(10**4, 384, 6) == pytest.approx(48)
    assert Floors(ARCH, H200, 64).distinct(1, 128, 3) == 2  # a rank has fewer than are chosen
