"""The key chain: equal keys mean equal tokens up to there, and nothing else."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from deepinfer.cache import extend_chain, first_key, salted
from deepinfer.cache.keys import frame

FIRST = first_key(b"model", b"layout", b"exact", b"")
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def chain(ids, first=FIRST):
    keys: list[bytes] = []
    extend_chain(keys, first, ids, 4, len(ids))
    return keys


@given(tokens)
def test_a_key_is_the_hash_of_the_one_before_the_tokens_and_no_extras(ids):
    key, expected = FIRST, []
    for start in range(0, len(ids) // 4 * 4, 4):
        words = b"".join(token.to_bytes(4, "little") for token in ids[start : start + 4])
        key = hashlib.sha256(key + words + frame(b"")).digest()
        expected.append(key)
    assert chain(ids) == expected


@given(tokens, st.integers(0, 40))
def test_a_chain_grows_by_parts(ids, cut):
    keys: list[bytes] = []
    extend_chain(keys, FIRST, ids[:cut], 4, len(ids[:cut]))
    extend_chain(keys, FIRST, ids[4 * len(keys) :], 4, len(ids))
    assert keys == chain(ids)


@given(tokens, tokens)
def test_keys_agree_exactly_as_far_as_the_pages_do(one, other):
    for place, (a, b) in enumerate(zip(chain(one), chain(other), strict=False)):
        end = 4 * (place + 1)
        assert (a == b) == (one[:end] == other[:end])


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_no_two_lists_of_fields_have_one_frame(one, other):
    assert (frame(*one) == frame(*other)) == (one == other)


def test_model_layout_semantics_tenant_and_salt_each_make_another_chain():
    variants = [
        FIRST,
        first_key(b"model2", b"layout", b"exact", b""),
        first_key(b"model", b"layout2", b"exact", b""),
        first_key(b"model", b"layout", b"bounded 140", b""),
        first_key(b"model", b"layout", b"exact", b"tenant"),
        salted(FIRST, b"salt"),
    ]
    assert len({chain([1, 2, 3, 4], first)[0] for first in variants}) == len(variants)
    assert salted(FIRST, b"") == FIRST
