"""Steps 1 to 3 on logits: which ids are possible at all, biases, penalties, grammar masks.

Every rule looks at the row's own prefix, hypothetical drafts included. Knows nothing of chance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.ops.sample.state import Entries, SamplerState

_WORD_BITS = 32
RULED_BYTES = 1 << 30  # bound on what one part of the rows takes while rules are applied
_EACH_ID, _EACH_TOKEN = 32, 24  # bytes a row: for each id of the vocabulary, each token of `tokens`


def constrain_in_parts(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    tokens: Tensor,
    masks: Tensor | None,
) -> Tensor:
    """`constrain` for any number of rows, in parts whose temporary tensors have a bound."""
    step = part_rows(logits.shape[1], tokens.shape[1])
    if len(logits) <= step:
        return constrain(logits, state, rows, positions, tokens, masks)
    ruled = torch.empty_like(logits)
    for low in range(0, len(logits), step):
        part = slice(low, low + step)
        own = None if masks is None else masks[part]
        ruled[part] = constrain(logits[part], state, rows[part], positions[part], tokens, own)
    return ruled


def part_rows(vocab: int, longest: int) -> int:
    """Rows of one part, for rows of so many ids and requests of so many tokens."""
    return max(1, RULED_BYTES // (_EACH_ID * vocab + _EACH_TOKEN * longest))


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
    if state.rules.bias.most:
        logits = _biased(logits, state.rules.bias, rows)
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
    check_masks(masks, vocab)
    bits = torch.arange(_WORD_BITS, dtype=torch.int32, device=masks.device)
    return ((masks.unsqueeze(-1) >> bits) & 1).flatten(1)[:, :vocab].bool()


def check_masks(masks: Tensor, vocab: int) -> None:
    """Raise ValueError if packed masks [n, words] do not fit the vocabulary."""
    if masks.dtype != torch.int32 or masks.shape[1] != -(-vocab // _WORD_BITS):
        raise ValueError(
            f"masks {masks.dtype} {tuple(masks.shape)}: use int32 words, one for 32 of {vocab} ids"
        )


def forced_ids(state: SamplerState, rows: Tensor, positions: Tensor) -> Tensor:
    """[n] int64: the id that teacher forcing puts at each position, -1 = free."""
    forced = state.rules.forced
    if not forced.most:
        return torch.full_like(rows, -1)
    entry, there = forced.of(rows)
    here = there & (forced.value[entry] == (positions - state.prompt_len[rows]).unsqueeze(1))
    return torch.where(here, forced.ids[entry, 0], -1).amax(1)


def _marked(like: Tensor, ids: Tensor, where: Tensor) -> Tensor:
    """Bool of the shape of `like` [n, vocab]: True at `ids` [n, width] of those `where` True."""
    vocab = like.shape[1]
    marks = like.new_zeros((len(like), vocab + 1), dtype=torch.bool)
    return marks.scatter_(1, torch.where(where, ids, vocab), True)[:, :vocab]


def _biased(logits: Tensor, bias: Entries, rows: Tensor) -> Tensor:
    entry, there = bias.of(rows)
    vocab = logits.shape[1]
    ids = torch.where(there, bias.ids[entry, 0], vocab)
    wider = torch.nn.functional.pad(logits, (0, 1))
    changed = wider.gather(1, ids) + bias.value[entry]
    return wider.scatter_(1, ids, changed)[:, :vocab]


def _allowed(logits: Tensor, state: SamplerState, rows: Tensor) -> Tensor:
    allowed = state.rules.allowed
    if not allowed.most:
        return torch.ones_like(logits, dtype=torch.bool)
    entry, there = allowed.of(rows)
    free = ~there.any(1, keepdim=True)
    return _marked(logits, allowed.ids[entry, 0], there) | free


def _forbid_bad_words(
    alive: Tensor, state: SamplerState, rows: Tensor, positions: Tensor, tokens: Tensor
) -> None:
    """Writes `alive`: no last id of a word whose other ids were just generated."""
    words = state.rules.bad_words
    if not words.most:
        return
    entry, there = words.of(rows)
    ids, length = words.ids[entry], words.value[entry].unsqueeze(-1)
    back = torch.arange(ids.shape[2] - 1, 0, -1, device=rows.device)  # columns before the last
    at = positions.unsqueeze(1) - back
    before = tokens[rows.unsqueeze(1), at.clamp(min=0)].unsqueeze(1)
    outside = back >= length  # padding in front of a shorter word
    generated = (at >= state.prompt_len[rows].unsqueeze(1)).unsqueeze(1)
    complete = (outside | (generated & (before == ids[..., :-1]))).all(-1)
    alive &= ~_marked(alive, ids[..., -1], there & complete)


def _forbid_ends(alive: Tensor, state: SamplerState, rows: Tensor, positions: Tensor) -> None:
    """Writes `alive`: no end or stop id before `min_tokens` generated tokens."""
    early = positions - state.prompt_len[rows] < state.min_tokens[rows]
    ends = torch.cat((state.end_id.unsqueeze(1), state.stop_ids), dim=1)[rows]
    alive &= ~_marked(alive, ends, early.unsqueeze(1) & (ends >= 0))


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
