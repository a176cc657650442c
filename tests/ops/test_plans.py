"""The pure part of the kernels: tile counts and segments."""

from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.experts.plan import choose, most_tiles
from deepinfer.ops.grouped_output import plan as low_plan
from deepinfer.ops.linear_fp8.plan import SPLIT_TOKENS, segments
from deepinfer.ops.linear_fp8.plan import choose as choose_linear


@given(st.lists(st.integers(0, 300), min_size=1, max_size=48), st.sampled_from([16, 32, 48, 64]))
def test_no_routing_needs_more_tiles_than_the_bound(counts, width):
    needed = sum(-(-count // width) for count in counts)
    assert needed <= most_tiles(sum(counts), len(counts), width)


@given(st.integers(1, 100_000), st.integers(1, 8), st.integers(1, 384))
def test_both_products_share_the_width_of_the_tile_table(tokens, k, experts):
    k = min(k, experts)
    tiles = choose(tokens, k, experts)
    assert 16 <= (tiles.least or 16) <= tiles.gate_up.tokens
    assert tiles.gate_up.tokens == tiles.down.tokens
    assert tiles.gate_up.tokens >= min(64, tokens * k / experts)


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 384))
def test_experts_that_multiply_all_tokens_have_tiles_that_hold_them(tokens, k, experts):
    tiles = choose(tokens, k, experts)
    assert not tiles.own or tokens <= tiles.gate_up.tokens
    assert not tiles.own or tiles.gate_up == tiles.down  # one launch, one tile
    assert not tiles.own or experts <= 12


@given(st.integers(65, 100_000), st.integers(1, 8), st.integers(1, 384))
def test_a_warp_copies_where_experts_get_many_rows(tokens, k, experts):
    k = min(k, experts)
    rows, tiles = tokens * k / experts, choose(tokens, k, experts)
    assert tiles.copied == (rows >= 128 or (experts <= 12 and rows > 64))
    if tiles.copied:
        for tile in (tiles.gate_up, tiles.down):
            threads = 2 * 32 * tile.warps  # four warps for the one that copies
            assert tile.programs // 132 * threads * (tile.registers or 0) <= 65536


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(2, 80))
def test_sums_of_segments_are_kept_apart_for_a_bounded_number_of_tokens(tokens, blocks, steps):
    tile = choose_linear(tokens, blocks * 128, steps * 128)
    assert tokens <= SPLIT_TOKENS or tile.rows * tile.tokens == 128 * 128
    assert blocks * 128 % tile.rows == 0
    assert tokens <= tile.tokens or tile.input_left


@given(st.integers(1, 600), st.integers(1, 80))
def test_segments_are_equal_or_long_and_never_too_short(blocks, steps):
    count = segments(blocks * 64, steps * 128)
    assert steps % count == 0 or steps // count >= 16
    assert count == 1 or steps // count >= 4


def test_segments_of_the_model_s_weights_fill_two_or_three_programs_a_multiprocessor():
    shapes = {(1792, 5120): 10, (5120, 8192): 3, (4608, 5120): 5, (5120, 2304): 3, (32768, 1280): 1}
    assert {shape: segments(*shape) for shape in shapes} == shapes


@given(st.integers(1, 300), st.integers(2, 80), st.integers(1, 5000))
def test_segments_of_the_low_rank_product_are_equal_and_more_than_one_step(blocks, steps, tokens):
    count = low_plan.segments(blocks * 128, steps * 128)
    assert steps % count == 0
    assert steps // count >= 2
    tile = low_plan.choose(tokens, blocks * 128, blocks * 128)
    assert blocks * 128 % tile.rows == 0
    assert tile.stages >= 3  # the loop keeps one buffer for the product before
    assert tokens <= tile.tokens or tile.tokens == 128
