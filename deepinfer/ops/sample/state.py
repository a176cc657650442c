"""The sampling values of all rows, as tensors that `sample` indexes by row.

Values of one number a row are dense tables of fixed shape; lists (biases, allowed ids, bad words,
forced ids) are flat lists of entries that carry their row, empty as long as no row has any. Knows
nothing of logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.noise import NoiseKey
from deepinfer.ops.sample.elementary import MOST_VOCAB
from deepinfer.request import GREEDY_BELOW
from deepinfer.step import Admit, RowSampling

NO_LOGPROBS = -1
_MOST = 2.0**100  # any larger factor acts the same, and fp32 holds it and its inverse
_MOST_TOKENS = 1 << 40  # no row ever has as many
_STOP_IDS = 8  # first width of the stop id table; doubled when a row needs more


class Entries(NamedTuple):
    """Sparse per-row values: entry i belongs to row `row[i]`.

    row [n] int64; ids [n] int64, or [n, width] for words, right-aligned behind -1; value [n]: the
    addition of a bias (fp32), the output index of a forced id, the length of a bad word (int64).
    """

    row: Tensor
    ids: Tensor
    value: Tensor


class Rules(NamedTuple):
    """Entries of the rows that have such rules: additions to logits, the only ids allowed, words
    that must not be completed, ids that teacher forcing puts at output indexes."""

    bias: Entries
    allowed: Entries
    bad_words: Entries
    forced: Entries


class Uses(NamedTuple):
    """Host facts: what at least one row uses. They save work and never change a row's bits."""

    noise: bool = False
    truncation: bool = False
    penalties: bool = False
    min_tokens: bool = False
    processed: bool = False
    logprobs: int = NO_LOGPROBS  # most entries that any row wants, may exceed the vocabulary


@dataclass(frozen=True)
class SamplerState:
    """Everything about the rows that choosing tokens needs; tables are changed in place.

    Attributes:
        greedy: [rows] bool.
        temperature: [rows] fp32, 1 for greedy rows.
        top_p: [rows] float64.
        top_k: [rows] int64, 0 = all.
        log_min_p: [rows] fp32, natural logarithm; -inf = off.
        presence, frequency, repetition: [rows] fp32 penalties.
        min_tokens: [rows] int64, generated tokens before which no end or stop id may come.
        end_id: [rows] int64, -1 = ignored.
        stop_ids: [rows, width] int64 without the end id, -1 = none.
        prompt_len: [rows] int64.
        seed: [rows] int64, 64 bits read as a signed number.
        completion: [rows] int64, sample index of the noise.
        logprobs: [rows] int64, entries wanted (may exceed the vocabulary), -1 = none at all.
        processed: [rows] bool, report the law that is drawn from.
        rules: what is stored as lists.
        uses: host facts.
    """

    greedy: Tensor
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    log_min_p: Tensor
    presence: Tensor
    frequency: Tensor
    repetition: Tensor
    min_tokens: Tensor
    end_id: Tensor
    stop_ids: Tensor
    prompt_len: Tensor
    seed: Tensor
    completion: Tensor
    logprobs: Tensor
    processed: Tensor
    rules: Rules
    uses: Uses = Uses()

    def key(self, rows: Tensor, positions: Tensor) -> NoiseKey:
        """Noise key of the tokens at `positions` [n] of `rows` [n]."""
        return NoiseKey(self.seed[rows], positions, self.completion[rows])


class SamplerTable:
    """Owns a `SamplerState` and changes it as rows come and go.

    Args:
        rows: entries of the tables, the reserved row 0 included.
        device: where they lie.
    """

    def __init__(self, rows: int, device: torch.device | str = "cpu"):
        self._device = torch.device(device)
        self._admitted: dict[int, Admit] = {}
        self._changed = False
        self._state = self._allocate(rows)

    @property
    def state(self) -> SamplerState:
        """The values of all admitted rows; those of other rows mean nothing."""
        if self._changed:
            self._changed = False
            self._state = replace(
                self._state, rules=_rules(self._admitted, self._device), uses=_uses(self._admitted)
            )
        return self._state

    def admit(self, admit: Admit) -> None:
        """Set the values of a row; what it held before is gone."""
        stops = [i for i in admit.stop_ids if i != admit.end_id]
        self._widen(len(stops))
        sampling, state, row = admit.sampling, self._state, admit.row
        greedy = sampling.temperature < GREEDY_BELOW
        state.greedy[row] = greedy
        state.temperature[row] = 1.0 if greedy else min(sampling.temperature, _MOST)
        state.top_p[row] = sampling.top_p
        state.top_k[row] = min(max(sampling.top_k, 0), MOST_VOCAB)
        state.log_min_p[row] = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
        state.presence[row] = sampling.presence_penalty
        state.frequency[row] = sampling.frequency_penalty
        state.repetition[row] = min(max(sampling.repetition_penalty, 1 / _MOST), _MOST)
        state.min_tokens[row] = min(sampling.min_tokens, _MOST_TOKENS)
        state.end_id[row] = admit.end_id
        padded = [*stops, *[-1] * (state.stop_ids.shape[1] - len(stops))]
        state.stop_ids[row] = torch.tensor(padded, device=self._device)
        state.prompt_len[row] = admit.prompt_len
        state.seed[row] = signed(admit.seed)
        state.completion[row] = admit.sample
        state.logprobs[row] = _entries_wanted(sampling)
        state.processed[row] = sampling.processed_logprobs
        self._admitted[row] = admit
        self._changed = True

    def release(self, row: int) -> None:
        """Forget a row."""
        del self._admitted[row]
        self._changed = True

    def _allocate(self, rows: int) -> SamplerState:
        def table(value: float, dtype: torch.dtype, *width: int) -> Tensor:
            return torch.full((rows, *width), value, dtype=dtype, device=self._device)

        return SamplerState(
            greedy=table(1, torch.bool),
            temperature=table(1, torch.float32),
            top_p=table(1, torch.float64),
            top_k=table(0, torch.int64),
            log_min_p=table(-math.inf, torch.float32),
            presence=table(0, torch.float32),
            frequency=table(0, torch.float32),
            repetition=table(1, torch.float32),
            min_tokens=table(0, torch.int64),
            end_id=table(-1, torch.int64),
            stop_ids=table(-1, torch.int64, _STOP_IDS),
            prompt_len=table(0, torch.int64),
            seed=table(0, torch.int64),
            completion=table(0, torch.int64),
            logprobs=table(NO_LOGPROBS, torch.int64),
            processed=table(0, torch.bool),
            rules=_rules({}, self._device),
        )

    def _widen(self, wanted: int) -> None:
        stop_ids = self._state.stop_ids
        rows, width = stop_ids.shape
        while wanted > width:
            width *= 2
        if width > stop_ids.shape[1]:
            wider = stop_ids.new_full((rows, width), -1)
            wider[:, : stop_ids.shape[1]] = stop_ids
            self._state = replace(self._state, stop_ids=wider)


def signed(seed: int) -> int:
    """The signed number of the same 64 bits, as int64 tensors hold it."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _entries_wanted(sampling: RowSampling) -> int:
    """Entries for a generated token, NO_LOGPROBS if none at all."""
    if sampling.logprobs is None:
        return NO_LOGPROBS
    return MOST_VOCAB if sampling.logprobs < 0 else min(sampling.logprobs, MOST_VOCAB)


def _uses(admitted: dict[int, Admit]) -> Uses:
    all_of = [admit.sampling for admit in admitted.values()]
    drawn = [s for s in all_of if s.temperature >= GREEDY_BELOW]
    return Uses(
        noise=bool(drawn),
        truncation=any(s.top_p < 1 or s.top_k > 0 or s.min_p > 0 for s in drawn),
        penalties=any(
            s.presence_penalty != 0 or s.frequency_penalty != 0 or s.repetition_penalty != 1
            for s in all_of
        ),
        min_tokens=any(s.min_tokens > 0 for s in all_of),
        processed=any(s.processed_logprobs and s.logprobs is not None for s in all_of),
        logprobs=max((_entries_wanted(s) for s in all_of), default=NO_LOGPROBS),
    )


def _rules(admitted: dict[int, Admit], device: torch.device) -> Rules:
    rows = {row: admit.sampling for row, admit in admitted.items()}
    bias = [(row, i, value) for row, s in rows.items() for i, value in s.logit_bias]
    allowed = [(row, i, 0) for row, s in rows.items() for i in s.allowed_token_ids or ()]
    forced = [
        (row, i, place)
        for row, s in rows.items()
        for place, i in enumerate(s.forced_token_ids)
        if i >= 0
    ]
    return Rules(
        bias=_entries(bias, torch.float32, device),
        allowed=_entries(allowed, torch.int64, device),
        bad_words=_words([(row, w) for row, s in rows.items() for w in s.bad_words], device),
        forced=_entries(forced, torch.int64, device),
    )


def _entries(
    items: Sequence[tuple[int, int, float]], value: torch.dtype, device: torch.device
) -> Entries:
    return Entries(
        torch.tensor([row for row, _, _ in items], dtype=torch.int64, device=device),
        torch.tensor([i for _, i, _ in items], dtype=torch.int64, device=device),
        torch.tensor([v for _, _, v in items], dtype=value, device=device),
    )


def _words(items: Sequence[tuple[int, tuple[int, ...]]], device: torch.device) -> Entries:
    width = max((len(word) for _, word in items), default=1)
    ids = [[-1] * (width - len(word)) + list(word) for _, word in items]
    return Entries(
        torch.tensor([row for row, _ in items], dtype=torch.int64, device=device),
        torch.tensor(ids, dtype=torch.int64, device=device).view(len(items), width),
        torch.tensor([len(word) for _, word in items], dtype=torch.int64, device=device),
    )
