"""Which entries the indexers let through, and how they learn to choose.

An indexer is distilled: its scores shall order the entries as the attention weighs them. It does
not know how scores are made. Source: `spec/model.md` 6.5; `spec/model-decisions.md` D31, D32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.arch import Arch


def select(
    scores: Tensor, visible: Tensor, within: Tensor | None, arch: Arch, *, publish: bool
) -> tuple[Tensor, Tensor | None]:
    """The best entries of every token as a mask; ties go to the lowest entry.

    Args:
        scores: [rows, length, entries] fp32.
        visible: bool of that shape.
        within: bool of that shape, entries of candidate blocks, or None.
        arch: counts and sizes.
        publish: also make the candidate mask for later layers.

    Returns:
        The selected entries, and the candidate mask if asked for.
    """
    masked = scores.masked_fill(~visible, -torch.inf)
    blocks = candidates(masked, visible, arch) if publish else None
    if within is not None:
        masked = masked.masked_fill(~within, -torch.inf)
    return _best(masked, arch.index_topk) & (masked > -torch.inf), blocks


def candidates(masked: Tensor, visible: Tensor, arch: Arch) -> Tensor:
    """Entries of the best blocks; the block of the newest visible entry is always among them.

    Blocks are counted from the start of the row, as all documents of a row share its entries; the
    engine counts from the start of the document.
    """
    size = arch.candidate_block_size
    entries = masked.shape[-1]
    pad = -entries % size
    padded = functional.pad(masked, (0, pad), value=-torch.inf).unflatten(-1, (-1, size))
    column = torch.arange(entries, device=masked.device)
    newest = torch.where(visible, column, -1).amax(-1, keepdim=True)
    best = padded.amax(-1)
    number = torch.arange(best.shape[-1], device=masked.device)
    best = best.masked_fill((number == newest // size) & (newest >= 0), torch.inf)
    kept = _best(best, arch.candidate_topk_blocks) & (best > -torch.inf)
    return kept.repeat_interleave(size, -1)[..., :entries]


def _best(scores: Tensor, count: int) -> Tensor:
    if count >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    least = torch.topk(scores, count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, level = scores > least, scores == least
    left = count - above.sum(-1, keepdim=True, dtype=torch.int32)
    return above | (level & (level.cumsum(-1, dtype=torch.int32) <= left))


def index_loss(scores: Tensor, mass: Tensor, seen: Tensor, valid: Tensor) -> Tensor:
    """Cross-entropy of the softmax of the scores under the attention mass, a mean over tokens.

    A token counts as much as it attends to entries at all.

    Args:
        scores: [rows, length, entries] fp32.
        mass: probabilities of the same shape, without gradient.
        seen: bool, the entries attended to.
        valid: [rows, length] fp32, 0 for padding.
    """
    guess = torch.log_softmax(scores.masked_fill(~seen, -1e9), -1)
    each = -(mass.float() * guess).sum(-1)
    return (each * valid).sum() / valid.sum().clamp(min=1)
