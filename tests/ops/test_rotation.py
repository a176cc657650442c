"""Rotary embedding: inverse, relative positions, and the YaRN numbers of the release."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.arch import RopeScaling
from deepinfer.ops.rotation import frequencies, layer_frequencies, rotate, rotation
from tests.ops.small import SMALL

RELEASE = RopeScaling(16.0, 32.0, 1.0, 65536)
positions = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=6).map(torch.tensor)


@given(positions, st.sampled_from([2, 16, 64]))
def test_rotating_back_restores_the_vector(where, rope):
    by = rotation(where, frequencies(rope, 10000.0))
    x = torch.randn(len(where), 3, 80)
    torch.testing.assert_close(rotate(rotate(x, by), by, inverse=True), x, rtol=0, atol=2e-6)


@given(positions)
def test_only_the_last_channels_turn_and_lengths_stay(where):
    by = rotation(where, frequencies(16, 10000.0))
    x = torch.randn(len(where), 2, 40)
    y = rotate(x, by)
    assert (y[..., :24] == x[..., :24]).all()
    pairs = (x[..., 24:].unflatten(-1, (-1, 2)), y[..., 24:].unflatten(-1, (-1, 2)))
    torch.testing.assert_close(pairs[1].norm(dim=-1), pairs[0].norm(dim=-1))


def test_neighbouring_channels_form_a_pair():
    by = rotation(torch.tensor([1]), torch.tensor([torch.pi / 2, 0.0]))
    y = rotate(torch.tensor([[1.0, 0.0, 5.0, 6.0]]), by)
    torch.testing.assert_close(y, torch.tensor([[0.0, 1.0, 5.0, 6.0]]))


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_products_depend_on_the_distance_only(p, q, shift):
    freqs = frequencies(16, 10000.0)
    a, b = torch.randn(2, 1, 16, dtype=torch.float32)

    def product(first, second):
        x = rotate(a, rotation(torch.tensor([first]), freqs))
        y = rotate(b, rotation(torch.tensor([second]), freqs))
        return (x * y).sum()

    torch.testing.assert_close(product(p, q), product(p + shift, q + shift), rtol=0, atol=2e-2)


def test_position_zero_changes_nothing():
    x = torch.randn(1, 4, 32).bfloat16()
    assert (rotate(x, rotation(torch.tensor([0]), frequencies(32, 10000.0))) == x).all()


def test_yarn_keeps_fast_channels_and_stretches_slow_ones():
    plain, yarn = frequencies(64, 160000.0), frequencies(64, 160000.0, RELEASE)
    assert (yarn[:16] == plain[:16]).all()  # ramp from 15 to 25
    torch.testing.assert_close(yarn[25:], plain[25:] / 16)
    between = plain[16:25] / yarn[16:25]
    assert (between[1:] > between[:-1]).all()
    assert between[0] > 1
    assert between[-1] < 16


def test_angles_are_fp32_products():
    where, freqs = torch.tensor([1_048_575]), frequencies(64, 10000.0)
    angles = (where.float() * freqs).double()
    assert (rotation(where, freqs).cos.double() - angles.cos()).abs().max() < 1e-7
    exact = where.double() * freqs.double()
    assert (rotation(where, freqs).cos.double() - exact.cos()).abs().max() > 1e-3


def test_window_layers_use_plain_frequencies():
    window, compressed = layer_frequencies(SMALL)
    assert (window == frequencies(16, 10000.0)).all()
    assert (compressed == frequencies(16, 160000.0, SMALL.rope_scaling)).all()
