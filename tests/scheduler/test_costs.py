"""Cost curves learned from staircases and lines, with and without disturbances."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.scheduler.costs import TRUSTED, CostCurve, _place

SIZES = np.arange(1, 400)


def stairs(tokens):
    return 0.01 + 0.004 * (np.asarray(tokens) // 16)


def learned(sizes, law, times=3):
    curve = CostCurve()
    for _ in range(times):
        for size in sizes:
            curve.add(int(size), float(law(size)))
    return curve


def test_a_staircase_is_learned_step_by_step():
    curve = learned(range(1, 65), stairs)
    wanted = stairs(SIZES[:64])
    assert np.array_equal(curve.seconds(SIZES[:64]), wanted)


def test_between_and_beyond_measured_sizes_the_curve_is_straight():
    curve = learned((10, 20, 40), lambda n: 0.5 + 0.1 * n)
    assert np.allclose(curve.seconds(np.arange(10, 41)), 0.5 + 0.1 * np.arange(10, 41))
    beyond = curve.seconds(np.array([5, 80]))
    assert np.allclose(beyond, [1.0, 8.5], rtol=0.03)  # a little of the prior is left in the slope


def test_one_measured_size_says_that_half_of_the_time_grows_with_the_tokens():
    curve = learned([50], lambda n: 1.0)
    assert np.allclose(curve.seconds(np.array([0, 50, 100])), [0.5, 1, 1.5])


def test_first_runs_and_disturbances_do_not_count():
    curve = learned((64, 128), lambda n: 0.01 * n)
    for slow in (9.0, 7.0):
        curve.add(192, slow)
    assert curve.seconds(np.array([192]))[0] < 2  # not trusted yet
    curve.add(192, 2.0)
    assert curve.seconds(np.array([192]))[0] == 2
    for i in range(60):
        curve.add(128, 50.0 if i % 3 == 0 else 1.28)
    assert curve.seconds(np.array([128]))[0] == 1.28


def test_the_curve_follows_when_steps_become_slower():
    curve = learned((8, 16), lambda n: 0.01 * n, 20)
    for _ in range(40):
        curve.add(8, 0.12)
        curve.add(16, 0.30)
    assert curve.seconds(np.array([8, 16])).tolist() == [0.12, 0.30]


def test_times_that_say_nothing_are_not_learned():
    curve = CostCurve()
    curve.add(5, 0.0)
    assert not curve.known
    assert curve.times(5) == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.floats(1e-6, 10)),
        min_size=1,
        max_size=60,
    )
)
def test_any_times_give_a_positive_curve_that_never_falls(times):
    curve = CostCurve()
    for tokens, seconds in times:
        curve.add(tokens, seconds)
    found = curve.seconds(np.arange(0, 4000))
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (np.diff(found) >= -1e-12).all()


def test_places_are_ascending_never_wide_and_end_where_tiles_do():
    places = [_place(n) for n in range(1, 9000)]
    assert places == sorted(places)
    starts = {}
    for size, place in enumerate(places, 1):
        assert size < 1.07 * starts.setdefault(place, size)
    assert places[:64] == [(n, n) for n in range(1, 65)]
    assert all(first <= n <= last for n, (first, last) in enumerate(places, 1))
    for tile in (8, 16, 32, 64, 128):
        edges = range(tile, 16 * tile, tile)
        assert all(_place(edge) < _place(edge + 1) for edge in edges)


@given(st.sampled_from([16, 48, 64, 128]), st.integers(65, 600), st.integers(0, 9))
def test_asking_again_and_again_for_what_is_unmeasured_finds_the_edges_of_a_staircase(
    tile, most, seed
):
    """Looking where the hope is greatest, as the planner does, ends, and then the hope is true."""
    sizes, worth = np.arange(8, most), np.random.default_rng(seed).random(most - 8)
    gains = 8 + np.cumsum(np.sort(worth)[::-1])
    curve, tries = CostCurve(), 0

    def law(size):
        return 4.0 + -(-size // tile)

    def time(size):
        for _ in range(TRUSTED):
            curve.add(int(size), law(int(size)))

    time(most - 1)
    while True:
        place = int(np.argmax(gains / curve.at_best(sizes)))
        tried = curve.unmeasured(sizes, place)
        if tried is None:
            break
        tries += 1
        time(sizes[tried])
        assert tries < 80
    chosen = int(np.argmax(gains / curve.seconds(sizes)))
    rates = gains / np.array([law(int(size)) for size in sizes])
    assert rates[chosen] >= 0.97 * rates.max()


def test_at_best_no_size_is_faster_than_a_measured_smaller_one():
    curve = learned((10, 20), lambda n: 0.1 * n)
    assert curve.at_best(np.array([5, 10, 19, 20, 90])).tolist() == [0.25, 1, 1, 2, 2]
    assert curve.unmeasured(np.array([9, 10, 20]), 1) is None
    assert curve.unmeasured(np.arange(30), 12) == 15
    assert curve.unmeasured(np.arange(30), 5) == 0
    assert curve.unmeasured(np.arange(30), 25) == 29
