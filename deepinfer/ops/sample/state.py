"""The sampling values of all rows, as tensors that `sample` indexes by row.

Values of one number a row are dense tables of fixed shape; lists (biases, allowed ids, bad words,
forced ids) are flat lists of entries, empty as long as no row has any. Knows
nothing of logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.device import upload
from deepinfer.ops.noise import NoiseKey
from deepinfer.ops.sample.elementary import MOST_VOCAB
from deepinfer.request import GREEDY_BELOW
from deepinfer.step import Admit, RowSampling

NO_LOGPROBS = -1
_MOST = 2.0**100  # any larger factor acts the same, and fp32 holds it and its inverse
_MOST_TOKENS = 1 << 40  # no row ever has as many
_COLUMNS = 16  # of a row's packed values, before its stop ids
_STOP_IDS = 8  # first width of the stop id table; doubled when a row needs more


class Entries(NamedTuple):
    """Sparse per-row values, those of one row side by side.

    ids [n, width] int64, one id, or a word right-aligned behind -1; value [n]: the addition of a
    bias (fp32), the output index of a forced id, the length of a bad word (int64). span [rows, 2]
    int64: first entry of each row and how many it has; most (host): entries of the row with most.
    """

    ids: Tensor
    value: Tensor
    span: Tensor
    most: int

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Entries of `rows` [n]: their indexes [n, most] and which of them there are (bool)."""
        first, count = self.span[rows].unbind(1)
        place = torch.arange(self.most, device=rows.device)
        there = place < count.unsqueeze(1)
        return torch.where(there, first.unsqueeze(1) + place, 0), there


class Rules(NamedTuple):
    """Entries of the rows that have such rules: additions to logits, the only ids allowed, words
    that must not be completed, ids that teacher forcing puts at output indexes."""

    bias: Entries
    allowed: Entries
    bad_words: Entries
    forced: Entries

    @property
    def any(self) -> bool:
        """Whether any row has such a rule."""
        return any(entries.most for entries in self)


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
        self._rows = rows
        self._admitted: dict[int, Admit] = {}
        self._changed = False
        self._state = self._allocate(rows)

    @property
    def state(self) -> SamplerState:
        """The values of all admitted rows; those of other rows mean nothing."""
        if self._changed:
            self._changed = False
            self._state = replace(self._state, uses=_uses(self._admitted))
        return self._state

    def admit(self, admit: Admit) -> None:
        """Set the values of a row; what it held before is gone."""
        self.write(upload(self.enter([admit]), self._device))

    def enter(self, admits: Sequence[Admit]) -> NDArray[np.int64]:
        """Take rows in; `write` must follow with the result before `state` is used.

        Returns:
            [rows, columns], a packed row for each; floats as the bits of a float64.
        """
        gone = [self._admitted[a.row] for a in admits if a.row in self._admitted]
        packed = [self._packed(admit) for admit in admits]
        if any(_has_lists(admit) for admit in (*gone, *admits)):
            self._list_rules()
        longest = max(len(values) for values in packed)
        return np.array([[*v, *[-1] * (longest - len(v))] for v in packed], np.int64)

    def _packed(self, admit: Admit) -> list[int]:
        stops = [i for i in admit.stop_ids if i != admit.end_id]
        self._widen(len(stops))
        self._admitted[admit.row] = admit
        self._changed = True
        sampling = admit.sampling
        greedy = sampling.temperature < GREEDY_BELOW
        floats = (
            1.0 if greedy else min(sampling.temperature, _MOST),
            sampling.top_p,
            math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            min(max(sampling.repetition_penalty, 1 / _MOST), _MOST),
        )
        return [
            admit.row,
            int(greedy),
            min(max(sampling.top_k, 0), MOST_VOCAB),
            min(sampling.min_tokens, _MOST_TOKENS),
            admit.end_id,
            admit.prompt_len,
            signed(admit.seed),
            admit.sample,
            _entries_wanted(sampling),
            int(sampling.processed_logprobs),
            *np.array(floats, np.float64).view(np.int64).tolist(),
            *stops,
        ]

    def write(self, block: Tensor) -> None:
        """Put rows into the tables: block int64 [n, columns], of `enter`."""
        state, rows = self._state, block[:, 0]
        integers = (
            *(state.top_k, state.min_tokens, state.end_id, state.prompt_len),
            *(state.seed, state.completion, state.logprobs),
        )
        floats = (
            *(state.temperature, state.top_p, state.log_min_p),
            *(state.presence, state.frequency, state.repetition),
        )
        state.greedy[rows] = block[:, 1] != 0
        for column, table in enumerate(integers, 2):
            table[rows] = block[:, column]
        state.processed[rows] = block[:, 9] != 0
        for column, table in enumerate(floats, 10):
            table[rows] = block[:, column].view(torch.float64).to(table.dtype)
        stops = block[:, _COLUMNS:]
        wider = state.stop_ids.shape[1] - stops.shape[1]
        state.stop_ids[rows] = torch.nn.functional.pad(stops, (0, wider), value=-1)

    def release(self, row: int) -> None:
        """Forget a row."""
        admit = self._admitted.pop(row)
        self._changed = True
        if _has_lists(admit):
            self._list_rules()

    def _list_rules(self) -> None:
        rules = _rules(self._admitted, self._rows, self._device)
        self._state = replace(self._state, rules=rules)

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
            rules=_rules({}, rows, self._device),
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


def _has_lists(admit: Admit) -> bool:
    """Whether a row has rules that are stored as lists."""
    sampling = admit.sampling
    return bool(
        sampling.logit_bias
        or sampling.allowed_token_ids
        or sampling.bad_words
        or sampling.forced_token_ids
    )


def _rules(admitted: dict[int, Admit], count: int, device: torch.device) -> Rules:
    rows = {row: admit.sampling for row, admit in admitted.items()}

    def entries(
        of: Callable[[RowSampling], Sequence[tuple[Sequence[int], float]]], *, real: bool = False
    ) -> Entries:
        return _entries({row: of(sampling) for row, sampling in rows.items()}, count, device, real)

    return Rules(
        bias=entries(lambda s: [((i,), value) for i, value in s.logit_bias], real=True),
        allowed=entries(lambda s: [((i,), 0) for i in s.allowed_token_ids or ()]),
        bad_words=entries(lambda s: [(word, len(word)) for word in s.bad_words]),
        forced=entries(
            lambda s: [((i,), place) for place, i in enumerate(s.forced_token_ids) if i >= 0]
        ),
    )


def _entries(
    items: Mapping[int, Sequence[tuple[Sequence[int], float]]],
    count: int,
    device: torch.device,
    real: bool,
) -> Entries:
    """Entries (ids, value) of rows below `count`, in one upload; `real` values are fp32."""
    span = np.zeros((count, 2), np.int64)
    flat: list[tuple[Sequence[int], float]] = []
    for row, mine in items.items():
        span[row] = len(flat), len(mine)
        flat.extend(mine)
    width = max((len(ids) for ids, _ in flat), default=1)
    ids = np.full((len(flat), width), -1, np.int64)
    for place, (word, _) in enumerate(flat):
        ids[place, width - len(word) :] = word
    value = np.array([v for _, v in flat], np.float64)
    bits = value.view(np.int64) if real else value.astype(np.int64)
    sent = upload(np.concatenate((span.ravel(), ids.ravel(), bits)), device)
    spans, words, values = sent.split([span.size, ids.size, bits.size])
    return Entries(
        words.view(len(flat), width),
        values.view(torch.float64).to(torch.float32) if real else values,
        spans.view(count, 2),
        int(span[:, 1].max()),
    )
