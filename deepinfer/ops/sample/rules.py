"""Steps 1 to 3 on logits: which ids are possible at all, biases, penalties, grammar masks.

Every rule looks at the row's own prefix, hypothetical drafts included. Knows nothing of chance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.ops.sample.state import Entries, SamplerState

_WORD_BITS = 32


def constrain(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    tokens: Tensor,
    masks: Tensor | None,
) -> Tensor:
    """Apply the rules of each row.

    Args:
        logits: [n, vocab] fp32, finite.
        state: sampling values of all rows.
        rows: [n] int64, row of each position.
        positions: [n] int64, index of the token to be chosen.
        tokens: [rows, length] int64, ids of each row.
        masks: [n, words] int32 packed grammar masks, or None.

    Returns:
        [n, vocab] fp32, finite or -inf = impossible.
    """
    alive = _allowed(logits, state, rows)
    _forbid_bad_words(alive, state, rows, positions, tokens)
    if state.uses.min_tokens:
        _forbid_ends(alive, state, rows, positions)
    if state.rules.bias.row.numel():
        logits = logits.clone()
        n, entry = _matches(rows, state.rules.bias)
        ids = state.rules.bias.ids[entry]
        logits[n, ids] = logits[n, ids] + state.rules.bias.value[entry]
    if state.uses.penalties:
        logits = _penalise(logits, state, rows, positions, tokens)
    if masks is not None:
        alive &= unpack(masks, logits.shape[1])
    # Huge repetition penalties overflow; what is alive stays comparable.
    most = torch.finfo(torch.float32).max
    return logits.clamp(-most, most).masked_fill(~alive, -math.inf)


def unpack(masks: Tensor, vocab: int) -> Tensor:
    """[n, vocab] bool of packed masks [n, ceil(vocab / 32)] int32: bit i of word w = id 32 w + i.

    Raises:
        ValueError: the words do not fit the vocabulary.
    """
    if masks.dtype != torch.int32 or masks.shape[1] != -(-vocab // _WORD_BITS):
        raise ValueError(
            f"masks {masks.dtype} {tuple(masks.shape)}: use int32 words, one for 32 of {vocab} ids"
        )
    bits = torch.arange(_WORD_BITS, dtype=torch.int32, device=masks.device)
    return ((masks.unsqueeze(-1) >> bits) & 1).flatten(1)[:, :vocab].bool()


def forced_ids(state: SamplerState, rows: Tensor, positions: Tensor) -> Tensor:
    """[n] int64: the id that teacher forcing puts at each position, -1 = free."""
    forced = torch.full_like(rows, -1)
    if state.rules.forced.row.numel():
        n, entry = _matches(rows, state.rules.forced)
        here = state.rules.forced.value[entry] == (positions - state.prompt_len[rows])[n]
        forced[n[here]] = state.rules.forced.ids[entry[here]]
    return forced


def _matches(rows: Tensor, entries: Entries) -> tuple[Tensor, Tensor]:
    """Pairs (index into `rows`, index of an entry of that row)."""
    n, entry = (rows.unsqueeze(1) == entries.row).nonzero(as_tuple=True)
    return n, entry


def _allowed(logits: Tensor, state: SamplerState, rows: Tensor) -> Tensor:
    alive = torch.ones_like(logits, dtype=torch.bool)
    if state.rules.allowed.row.numel():
        n, entry = _matches(rows, state.rules.allowed)
        alive[n] = False
        alive[n, state.rules.allowed.ids[entry]] = True
    return alive


def _forbid_bad_words(
    alive: Tensor, state: SamplerState, rows: Tensor, positions: Tensor, tokens: Tensor
) -> None:
    """Writes `alive`: no last id of a word whose other ids were just generated."""
    words = state.rules.bad_words
    if not words.row.numel():
        return
    n, entry = _matches(rows, words)
    width = words.ids.shape[1]
    length, row = words.value[entry], rows[n]
    back = torch.arange(width - 1, 0, -1, device=rows.device)  # of the columns before the last
    at = positions[n].unsqueeze(1) - back
    before = tokens[row.unsqueeze(1), at.clamp(min=0)]
    outside = back >= length.unsqueeze(1)  # padding in front of a shorter word
    generated = at >= state.prompt_len[row].unsqueeze(1)
    complete = (outside | (generated & (before == words.ids[entry, :-1]))).all(1)
    alive[n[complete], words.ids[entry, -1][complete]] = False


def _forbid_ends(alive: Tensor, state: SamplerState, rows: Tensor, positions: Tensor) -> None:
    """Writes `alive`: no end or stop id before `min_tokens` generated tokens."""
    early = positions - state.prompt_len[rows] < state.min_tokens[rows]
    ends = torch.cat((state.end_id.unsqueeze(1), state.stop_ids), dim=1)[rows]
    n, column = (early.unsqueeze(1) & (ends >= 0)).nonzero(as_tuple=True)
    alive[n, ends[n, column]] = False


def _penalise(
    logits: Tensor, state: SamplerState, rows: Tensor, positions: Tensor, tokens: Tensor
) -> Tensor:
    """Repetition over prompt and outputs, then frequency and presence over outputs."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    known = place < positions.unsqueeze(1)
    output = known & (place >= state.prompt_len[rows].unsqueeze(1))
    ids = torch.where(known, tokens[rows], 0)
    count = torch.zeros_like(logits, dtype=torch.int32)
    seen = count.scatter_add(1, ids, known.to(torch.int32)) > 0
    count = count.scatter_add(1, ids, output.to(torch.int32)).to(torch.float32)
    repetition, frequency, presence = (
        value[rows].unsqueeze(1) for value in (state.repetition, state.frequency, state.presence)
    )
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, repeated, logits)
    return logits - frequency * count - presence * (count > 0)
