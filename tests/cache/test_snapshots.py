"""Places of snapshots, compared with a list in order of use."""

from hypothesis import given
from hypothesis import strategies as st

from deepinfer.cache import SnapshotPool

TTL = 3.0


@given(
    st.integers(0, 3),
    st.lists(
        st.tuples(st.sampled_from(["find", "store", "drop", "wait", "reset"]), st.integers(0, 4)),
        max_size=50,
    ),
)
def test_a_snapshot_is_found_until_it_expires_or_its_place_is_needed(places, moves):
    pool, now = SnapshotPool(places, TTL), 0.0
    model: dict[bytes, tuple[int, float]] = {}  # in order of use
    for kind, number in moves:
        key = bytes([number])
        model = {k: v for k, v in model.items() if now - v[1] <= TTL}
        assert pool.holds(key, now) == (key in model)
        if kind == "wait":
            now += number
        elif kind == "find":
            found = pool.find(key, now)
            assert found == model.get(key, (0,))[0]
            if found:
                model.pop(key)
                model[key] = (found, now)
        elif kind == "store":
            place = pool.store(key, now)
            assert (place == 0) == (key in model or places == 0)
            if place:
                if len(model) == places:
                    assert place == model.pop(next(iter(model)))[0]
                assert place not in [held for held, _ in model.values()]
                assert 1 <= place <= places
                model[key] = (place, now)
        elif kind == "drop":
            pool.drop(key)
            model.pop(key, None)
        else:
            pool.reset()
            model.clear()
        assert len(pool) <= places
