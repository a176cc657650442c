"""How much scratch memory the kernels of sparse attention take, and what bounds it.

Knows nothing of kernels: whoever plans memory needs no Triton.
"""

from __future__ import annotations

from deepinfer.arch import Arch

SLOTS = 64  # slots of one numerator group; a row's bits depend on it
TOKENS = 1024  # at a time in two launches; 90 KB of numerators and places each in the release
_LEAST = 128  # tokens of a slice
_AGAIN = 128  # decoded rows a token, above which decoding costs more than it saves
_MOST = 1 << 18  # decoded rows: 268 MB at the release's width
_NARROWEST = 128  # channels: half of them are one swizzled line of shared memory


def decoded_rows(tokens: int, width: int, ring_rows: int, entries: int) -> int:
    """Rows for the decoded keys of a slice; 0 if it should not have its keys decoded first.

    Args:
        tokens: of the slice.
        width: channels of a key.
        ring_rows: of a request's window.
        entries: bound on the entries of a request.
    """
    count = ring_rows + tokens + entries
    served = tokens >= _LEAST and count <= min(_MOST, _AGAIN * tokens) and width >= _NARROWEST
    return count if served else 0


def workspace(*, arch: Arch, tokens: int, longest: int) -> int:
    """Most bytes of scratch memory of a call; see `Implementation.workspace`."""
    rows = min(_MOST, _AGAIN * tokens, arch.ring_rows + tokens + longest + SLOTS)
    keys = 2 * arch.head_dim * rows
    slots = -(-arch.sliding_window // SLOTS) * SLOTS + -(-arch.index_topk // SLOTS) * SLOTS
    heads = arch.num_attention_heads
    # Numerators, highest scores and sums of each group, and where its records lie.
    numerators = slots * (2 * heads + 8) + slots // SLOTS * heads * 9 * 4
    return max(keys, min(tokens, TOKENS) * numerators)
