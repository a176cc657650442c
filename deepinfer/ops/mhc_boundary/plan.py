"""How the boundary's kernels cut their work; pure numbers. Knows nothing of tensors.

Streams are cut into slices of 64 columns of each of the four; a slice's product is summed by
itself, then slices are added group by group. A group is every so-many-th slice, so that programs
that run together read neighbouring columns.
"""

from __future__ import annotations

from typing import NamedTuple

SLICE = 64  # columns of each stream that are summed by themselves
TOKENS = 64  # of a tile
_GROUPS = (16, 8, 4)  # of slices: the first that divides their number
_PROGRAMS = 132  # multiprocessors of an H200; each holds one program of a tile


class Plan(NamedTuple):
    """What changes no bit.

    few: most tokens that one launch advances and projects; narrow: most of them for which its
    slices are of 16 tokens, not of 32; eight: for which its programs have 8 warps, not 4.
    split_tokens, split_warps: of the program that splits many.
    """

    few: int = 128
    narrow: int = 64
    eight: int = 88
    split_tokens: int = 4
    split_warps: int = 1


PLAN = Plan()  # measured on one H200 (docs/kernels.md)


def group_count(hidden: int) -> int:
    """Groups of slices of streams of `hidden` columns, a multiple of 256."""
    return next(n for n in _GROUPS if hidden // SLICE % n == 0)


def programs(tokens: int, groups: int) -> int:
    """Programs that share the tiles of a group of columns: all of them run at once."""
    return min(-(-tokens // TOKENS), _PROGRAMS // groups)
