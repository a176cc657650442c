"""How the boundary's kernels cut streams: groups of slices and programs of tiles."""

from hypothesis import given
from hypothesis import strategies as st

from deepinfer.ops.mhc_boundary.plan import SLICE, group_count, groups_together


@given(st.integers(1, 40), st.integers(1, 70_000))
def test_groups_share_the_slices_evenly_and_programs_the_groups(blocks, tokens):
    hidden = 256 * blocks
    groups, each = group_count(hidden), groups_together(tokens, hidden)
    assert hidden // SLICE % groups == 0
    assert groups % each == 0
    assert groups & (groups - 1) == 0  # sums of squares are added in pairs


def test_many_tokens_take_one_turn_of_programs_where_they_can():
    programs = {
        tokens: tokens // 64 * 16 // groups_together(tokens, 5120) for tokens in (512, 1024)
    }
    assert programs == {512: 128, 1024: 128}
