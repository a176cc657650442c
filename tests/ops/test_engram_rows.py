"""Row ids of n-grams against Python's unbounded integers."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.engram_rows import EngramHash, engram_rows

VOCAB = 50


def table(multipliers, primes, classes, pad):
    offsets = [sum(primes[:i]) for i in range(len(primes))]
    return EngramHash(
        classes=torch.tensor(classes),
        multipliers=torch.tensor(multipliers),
        primes=torch.tensor(primes),
        offsets=torch.tensor(offsets),
        pad=pad,
    )


def exactly(count, values):
    return st.lists(values, min_size=count, max_size=count)


def by_hand(window, hashes):
    """Rows of one token, newest id first, with integers that cannot overflow."""
    primes, offsets = hashes.primes.tolist(), hashes.offsets.tolist()
    classes, alive, slots = hashes.classes.tolist(), True, []
    for token in window:
        alive = alive and token >= 0
        slots.append(classes[token] if alive else hashes.pad)
    heads = len(primes) // (len(window) - 1)
    mixed, rows = slots[0] * int(hashes.multipliers[0]), []
    for back in range(1, len(window)):
        mixed ^= slots[back] * int(hashes.multipliers[back])
        for head in range(heads):
            column = (back - 1) * heads + head
            rows.append(mixed % primes[column] + offsets[column])
    return rows


@given(st.integers(2, 4), st.integers(1, 4), st.data())
def test_rows_equal_unbounded_arithmetic(sizes, heads, data):
    classes = 99092
    bound = (2**63 - 1) // classes // 2
    columns = (sizes - 1) * heads
    hashes = table(
        data.draw(exactly(sizes, st.integers(0, bound - 1).map(lambda v: 2 * v + 1))),
        data.draw(exactly(columns, st.integers(2, 17_000_000))),
        data.draw(exactly(VOCAB, st.integers(0, classes - 1))),
        data.draw(st.integers(0, classes - 1)),
    )
    tokens = exactly(sizes, st.integers(-1, VOCAB - 1))
    windows = data.draw(st.lists(tokens, min_size=1, max_size=6))
    found = engram_rows.reference(torch.tensor(windows), hashes)
    assert found.tolist() == [by_hand(window, hashes) for window in windows]
    assert (found >= hashes.offsets).all()
    assert (found < hashes.offsets + hashes.primes).all()


def test_everything_behind_a_missing_token_counts_as_missing():
    hashes = table([3, 5, 7], [101, 103], list(range(VOCAB)), 2)
    windows = torch.tensor([[4, -1, 9], [4, -1, -1], [4, 9, -1], [-1, 4, 9]])
    found = engram_rows.reference(windows, hashes).tolist()
    assert found[0] == found[1] != found[2]
    assert found[0] == by_hand([4, -1, -1], hashes)
    assert found[3] == by_hand([-1, -1, -1], hashes)


def test_the_vector_of_the_description():
    """model.md 9.4: ids [0, 128803, 671, 1805], layer 1, position 3: classes 237, 237, 98615, 0."""
    primes = [
        16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
        16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
        16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463,
    ]  # fmt: skip
    multipliers = [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    hashes = table(multipliers, primes, [0, 98615, 237, 237, 2], 2)
    rows = engram_rows.reference(torch.tensor([[3, 2, 1, 0]]), hashes)[0]
    assert rows[[0, 1, 2, 8, 16, 23]].tolist() == [
        4129897, 20913349, 39897371, 130463530, 261992566, 379136623,
    ]  # fmt: skip
