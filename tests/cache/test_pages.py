import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.cache import PagePool, pages_for


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (127, 1), (128, 1), (129, 2)])
def test_pages_for_counts_a_started_page(tokens, pages):
    assert pages_for(tokens, 128) == pages
    assert pages_for(np.array([tokens]), 128).tolist() == [pages]


@given(st.integers(1, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=40))
def test_a_page_is_free_once_or_owned_once(num_pages, moves):
    pool, owned = PagePool(num_pages), []
    for taking, count in moves:
        if taking and count <= pool.free:
            owned.append(pool.take(count))
            assert len(owned[-1]) == count
        elif owned:
            pool.give_back(owned.pop(count % len(owned)))
        held = [page for pages in owned for page in pages]
        assert set(held) <= set(range(1, num_pages + 1))
        assert len(held) == len(set(held)) == pool.used
        assert pool.used + pool.free == num_pages
        assert pool.check(held) == []


def test_pages_freed_last_are_handed_out_first_and_in_the_same_order():
    pool = PagePool(5)
    first = pool.take(3)
    pool.take(2)
    pool.give_back(first)
    assert pool.take(3) == first


def test_more_pages_than_are_free_are_our_own_bug():
    with pytest.raises(AssertionError, match="3 pages wanted, 2 free"):
        PagePool(2).take(3)


def test_check_names_pages_owned_twice_lost_and_unknown():
    pool = PagePool(3)
    assert pool.take(2) == [1, 2]
    assert pool.check([1, 1, 2]) == ["page 1 has 2 owners, 1 are counted"]
    assert pool.check([1]) == ["1 pages are neither free nor idle nor owned"]
    assert "page 3 is free, idle or owned 2 times" in pool.check([1, 2, 3])
    assert "page 9 is free, idle or owned 1 times" in pool.check([1, 2, 9])


@given(
    st.integers(2, 9),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=60),
)
def test_a_page_with_a_key_is_found_until_its_place_is_needed(num_pages, moves):
    pool = PagePool(num_pages)
    owned: list[list[int]] = []
    content: dict[int, bytes] = {}  # what an owner wrote into a page
    for kind, number in moves:
        key = bytes([number])
        if kind == 0 and pool.free:
            (page,) = pool.take(1)
            content[page] = b""
            owned.append([page])
        elif kind == 1 and owned:
            page = owned[number % len(owned)][-1]
            if not content[page]:
                content[page] = key
                pool.publish(page, key)
        elif kind == 2:
            found = pool.match([key])
            assert all(content[page] == key for page in found)
            free, idle = pool.free, pool.idle(found)
            pool.share(found)
            assert pool.free == free - idle
            if found:
                owned.append(found)
        elif kind == 3 and owned:
            pool.give_back(owned.pop(number % len(owned)))
        elif kind == 4 and number == 0:
            pool.reset()
            assert pool.cached == 0
        assert pool.check([page for pages in owned for page in pages]) == []


def test_pages_kept_for_later_are_given_up_last_the_end_of_a_chain_first():
    pool = PagePool(4)
    chain = pool.take(3)
    for page, key in zip(chain, (b"a", b"b", b"c"), strict=True):
        pool.publish(page, key)
    pool.give_back(chain)
    pool.take(2)
    assert pool.match([b"a", b"b", b"c"]) == chain[:2]
    assert pool.free == 2
