"""Products, norms and curves: values by hand and independence of place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.formats import Fp8Weight, quantise_fp8
from deepinfer.ops.products import curve, linear, matmul, rms_norm, sigmoid

BF16 = torch.bfloat16


def test_norm_of_a_hand_worked_row():
    x = torch.tensor([[3.0, -4.0]], dtype=BF16)  # mean square 12.5
    expected = torch.tensor([[3.0, -4.0]]) / 12.5**0.5 * torch.tensor([2.0, 0.5])
    assert (rms_norm(x, torch.tensor([2.0, 0.5]), 1e-20) == expected.to(BF16)).all()


def test_norm_of_a_zero_row_is_zero_even_with_a_tiny_eps():
    found = rms_norm(torch.zeros(2, 64, dtype=BF16), torch.ones(64), 1e-20)
    assert (found == 0).all()


def test_norm_multiplies_the_weight_last():
    x = torch.randn(50, 96).to(BF16)
    weight = torch.rand(96) + 0.5
    wide = x.float() * torch.rsqrt(x.double().square().mean(-1, keepdim=True).float() + 1e-6)
    assert (rms_norm(x, weight, 1e-6) == (weight * wide).to(BF16)).all()


def test_products_do_not_see_other_rows_or_threads():
    x, weight = torch.randn(300, 640), torch.randn(70, 640)
    whole = matmul(x, weight)
    for rows in (slice(0, 1), slice(5, 12), slice(250, 300)):
        assert (matmul(x[rows], weight) == whole[rows]).all()
    torch.set_num_threads(2)
    assert (matmul(x, weight) == whole).all()


@pytest.mark.parametrize("function", [torch.exp, torch.sin, torch.nn.functional.softplus])
def test_curves_do_not_see_the_place_of_an_element(function):
    x = 3 * torch.randn(1001)
    whole = curve(function, x)
    assert all(curve(function, x[i : i + 1]) == whole[i] for i in range(0, 1001, 7))
    assert (curve(function, x[3:998]) == whole[3:998]).all()
    assert (curve(function, x[::2]) == whole[::2]).all()


def test_sigmoid_is_the_usual_one_and_saturates():
    x = torch.tensor([0.0, 1.0, -1.0, 200.0, -200.0])
    torch.testing.assert_close(sigmoid(x), torch.sigmoid(x), rtol=3e-7, atol=0)
    assert sigmoid(x)[[0, 3, 4]].tolist() == [0.5, 1.0, 0.0]


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 3))
def test_quantised_linear_takes_pairs_and_plain_input_alike(tokens, out, blocks):
    x = torch.randn(tokens, 32 * blocks).to(BF16)
    codes = torch.randn(out, 32 * blocks).to(torch.float8_e4m3fn).view(torch.uint8)
    weight = Fp8Weight(codes, torch.full((-(-out // 32), blocks), 127, dtype=torch.uint8))
    found = linear(x, weight)
    assert found.dtype == BF16
    assert (linear(quantise_fp8(x), weight) == found).all()


def test_plain_linear_keeps_the_dtype_of_its_input():
    for dtype in (BF16, torch.float32):
        x = torch.ones(2, 4, dtype=dtype)
        assert linear(x, torch.eye(4)).dtype == dtype
