"""Turns logits into tokens: the order of operations of `docs/sampling.md`.

Rows are independent: what one of them gets never depends on the others. Knows nothing of how
logits came about, nor of what becomes of the tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.noise import Purpose, gumbel_argmax
from deepinfer.ops.sample.law import certain, scale, truncate
from deepinfer.ops.sample.logprobs import RowLogprobs, limited, raw_logprobs, top_logprobs
from deepinfer.ops.sample.rules import constrain, forced_ids
from deepinfer.ops.sample.state import NO_LOGPROBS, SamplerState
from deepinfer.step import FLAG_EMPTY, FLAG_NAN

# Elements of one [rows, vocab] intermediate: what a core has in its cache, or 256 MB of int64.
_CHUNK_CPU = 1 << 16
_CHUNK_DEVICE = 1 << 25


class Sampled(NamedTuple):
    """Result of `sample`.

    tokens [n] int64, -1 = none; flags [n] int32, 0, FLAG_NAN or FLAG_EMPTY of `step`; logprobs,
    None if no row asks for them; law [n, vocab] fp32, the distribution drawn from as unnormalised
    log-probabilities (maximum 0, -inf = impossible; certain for greedy and forced rows), None
    unless kept.
    """

    tokens: Tensor
    flags: Tensor
    logprobs: RowLogprobs | None
    law: Tensor | None


def sample(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    tokens: Tensor,
    masks: Tensor | None = None,
    keep_law: bool = False,
) -> Sampled:
    """Choose one token for each position that needs one.

    A request that verifies d drafts has d + 1 positions here, each with its own prefix: `tokens`
    holds the drafts behind the known tokens.

    Args:
        logits: [n, vocab] fp32.
        state: sampling values of all rows.
        rows: [n] int64, the row of each position in `state` and `tokens`.
        positions: [n] int64, index of the token to be chosen in its row, so that the row's
            prefix is tokens[row, :position]; >= 1.
        tokens: [rows, length] int64, ids of each row, prompt first. Columns behind a prefix are
            not read; `length` >= the largest position.
        masks: [n, ceil(vocab / 32)] int32, bit i of word w allows id 32 w + i; None = all allowed.
        keep_law: return the distributions too, for ratio verification.

    Returns:
        One entry for each position.
    """
    most = _CHUNK_CPU if logits.device.type == "cpu" else _CHUNK_DEVICE
    size = max(1, most // logits.shape[1])
    parts = [
        _sample_some(
            logits[i : i + size],
            state,
            rows[i : i + size],
            positions[i : i + size],
            tokens,
            None if masks is None else masks[i : i + size],
            keep_law,
        )
        for i in range(0, max(1, len(rows)), size)
    ]
    return parts[0] if len(parts) == 1 else joined(parts)


def _sample_some(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    tokens: Tensor,
    masks: Tensor | None,
    keep_law: bool,
) -> Sampled:
    broken = ~logits.isfinite().all(1)
    logits = logits.masked_fill(broken.unsqueeze(1), 0.0)
    possible = constrain(logits, state, rows, positions, tokens, masks)
    greedy = state.greedy[rows]
    best, chosen = possible.max(1).values, possible.argmax(1)
    scaled = scale(possible, best, state.temperature[rows])
    if state.uses.truncation:
        scaled = truncate(scaled, state.log_min_p[rows], state.top_k[rows], state.top_p[rows])
    if state.uses.noise:
        drawn = gumbel_argmax(scaled, state.key(rows, positions), Purpose.TARGET)
        chosen = torch.where(greedy, chosen, drawn)
    law = None
    if keep_law or state.uses.processed:
        law = torch.where(greedy.unsqueeze(1), certain(possible.argmax(1), scaled), scaled)
    forced = forced_ids(state, rows, positions)
    empty = (best == -math.inf) & (forced < 0)
    flags = torch.where(broken, FLAG_NAN, torch.where(empty, FLAG_EMPTY, 0)).to(torch.int32)
    chosen = torch.where(forced >= 0, forced, chosen).masked_fill(flags > 0, -1)
    logprobs = None
    if state.uses.logprobs >= 0:
        wanted = state.logprobs[rows].masked_fill(flags > 0, NO_LOGPROBS)
        logprobs = reported(logits, law, chosen, state, rows, wanted)
    if keep_law and law is not None:
        law = torch.where(forced.unsqueeze(1) >= 0, certain(forced.clamp(min=0), law), law)
    return Sampled(chosen, flags, logprobs, law if keep_law else None)


def reported(
    logits: Tensor,
    law: Tensor | None,
    chosen: Tensor,
    state: SamplerState,
    rows: Tensor,
    wanted: Tensor,
) -> RowLogprobs:
    """Log-probabilities of what was chosen and of the likeliest ids.

    Args:
        logits: [n, vocab] fp32, raw.
        law: as in `Sampled`, for the rows that report it; None if none does.
        chosen: [n] int64.
        state: sampling values of all rows.
        rows: [n] int64.
        wanted: [n] int64, entries of each row, NO_LOGPROBS = not even the chosen one's.
    """
    values = raw_logprobs(logits)
    if law is not None:
        values = torch.where(state.processed[rows].unsqueeze(1), raw_logprobs(law), values)
    found = top_logprobs(values, chosen, min(state.uses.logprobs, values.shape[1]))
    return limited(found, wanted)


def joined(parts: list[Sampled]) -> Sampled:
    """One result of the results of neighbouring rows."""
    if len(parts) == 1:
        return parts[0]
    logprobs = law = None
    if parts[0].logprobs is not None:
        columns = zip(*(part.logprobs for part in parts if part.logprobs is not None), strict=True)
        logprobs = RowLogprobs(*(torch.cat(column) for column in columns))
    if parts[0].law is not None:
        law = torch.cat([part.law for part in parts if part.law is not None])
    return Sampled(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.flags for part in parts]),
        logprobs,
        law,
    )
