"""How much scratch memory the kernels of the indexer take, and what bounds it.

Knows nothing of kernels: whoever plans memory needs no Triton.
"""

from __future__ import annotations

from deepinfer.arch import PAGE_TOKENS, Arch

SCORE_BYTES = 1 << 28  # bound on the scores of one chunk of rows
_LISTS = 1 << 15  # bytes a row, of lists and maxima of the choice, that do not grow with its length


def workspace(*, arch: Arch, tokens: int, longest: int) -> int:
    """Most bytes of scratch memory of a call; see `Implementation.workspace`.

    A row has four bytes of score an entry; scores of blocks, and what is kept to choose the best of
    a part, take less than three more. The ids of all rows are made once in parts and once whole.
    """
    entries = -(-longest // PAGE_TOKENS) * PAGE_TOKENS
    rows = min(tokens, max(1, SCORE_BYTES // (4 * entries)))
    chosen = 8 * (arch.index_topk + arch.candidate_topk_blocks)
    return rows * (7 * entries + 2 * chosen + _LISTS) + 2 * tokens * chosen
