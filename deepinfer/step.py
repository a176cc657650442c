"""The contract between planning and computing: what one step does, and what came of it.

Rows are admitted requests whose state (tokens, length, pages, drafts, sampling values) lives on the
device. A plan is a *diff* of the set of rows plus counts; it never holds token values or positions
that the host cannot know. Plain frozen data, JSON-able, so that a trace of plans is a test fixture,
a simulator input and a message to other ranks. Knows nothing of how plans are made or run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Bits of `StepResult.flags`; a row with any of them set generates nothing more.
FLAG_END = 1  # the end token was generated
FLAG_STOP_ID = 2  # another stop id was generated
FLAG_LIMIT = 4  # the row's token limit was reached
FLAG_NAN = 8  # its logits were not finite; no token was generated
FLAG_EMPTY = 16  # no token is allowed by the request's own rules; no token was generated


class RowSampling(NamedTuple):
    """What the device needs to choose a row's tokens; see `request.SamplingParams`.

    `logprobs` and `prompt_logprobs` are None or the number of entries (-1 = whole vocabulary); ids
    are checked against the vocabulary already. `bad_words` are token sequences.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    processed_logprobs: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    forced_token_ids: tuple[int, ...] = ()


class Admit(NamedTuple):
    """A request enters a free row.

    Attributes:
        row: >= 1 (row 0 is reserved).
        slot: state slot, >= 1.
        ids: all tokens known on the host: prompt, then outputs if it was preempted.
        prompt_len: how many of them are the prompt.
        cached: leading tokens whose pages are valid already and must not be written.
        encoder_start: first position that is computed, <= cached; positions from it to `cached`
            are computed for their windows only (replay), and no window reaches below it.
        decoder_start: first prompt position that runs the decoder layers (`dec_lo`).
        limit: total tokens (prompt and output) after which the row ends.
        end_id: the end token, -1 if ignored.
        stop_ids: other ids that end the row.
        seed, sample: key and sample index of the noise.
        sampling: how tokens are chosen.
        snapshot: place of the windows of the encoder layers before `encoder_start`, 0 = none; with
            it windows reach below `encoder_start`.
    """

    row: int
    slot: int
    ids: tuple[int, ...]
    prompt_len: int
    cached: int
    encoder_start: int
    decoder_start: int
    limit: int
    end_id: int
    stop_ids: tuple[int, ...]
    seed: int
    sample: int
    sampling: RowSampling
    snapshot: int = 0


class PageAppend(NamedTuple):
    """Entry `place` of a row's page table becomes `page` (>= 1)."""

    row: int
    place: int
    page: int


class Prefill(NamedTuple):
    """Compute known tokens [start, start + length) of a row; `emits`: then generate one token."""

    row: int
    start: int
    length: int
    emits: bool


class SnapshotSave(NamedTuple):
    """Keep the encoder windows of the positions before `end` of a row at a place (>= 1).

    `fresh`: a prefill slice of this step contains position `end - 1`; keep what it computes. Else
    keep what earlier steps left, before anything else of this step: the row may leave in it.
    """

    row: int
    end: int
    place: int
    fresh: bool


class DraftCap(NamedTuple):
    """From this step on at most `cap` drafts of the row are verified a step."""

    row: int
    cap: int


@dataclass(frozen=True)
class StepPlan:
    """One step: what changes in the set of rows, and what to compute.

    The order within a step is: windows of earlier steps are kept, release, admit, pages,
    decode_remove, decode_add, then prefill slices and decoding rows are computed together. A
    decoding row computes its newest token and the drafts it verifies, and generates the accepted
    drafts plus one token.

    Attributes:
        number: consecutive, from 0.
        admit, release: rows entering and leaving; a released row's pages may be used again at once.
        pages: page table entries that become valid.
        prefill: explicit slices.
        decode_add, decode_remove: rows entering or leaving the decoding set; empty in steady state.
        draft_budget: drafts verified in this step over all rows; the device gives them to those
            most likely accepted, a prefix a row, ties to the lower row (`runner.rows`).
        draft_cap: rows whose own cap changes (0 until said).
        draft_temperature: what the confidence of each draft of a block is divided by from this step
            on, for the device's choice of drafts; () = as before, 1 until said.
        graph_rows: padded number of decoding rows of a captured graph, 0 = the planner knows none.
        max_len_hi: bound on the tokens of any row after this step.
        snapshots: windows to keep.
        masked: rows whose grammar masks follow in `sample`, ascending.
        group: agreed rounds of a step over several ranks, 1 on one rank.
    """

    number: int
    admit: tuple[Admit, ...] = ()
    release: tuple[int, ...] = ()
    pages: tuple[PageAppend, ...] = ()
    prefill: tuple[Prefill, ...] = ()
    decode_add: tuple[int, ...] = ()
    decode_remove: tuple[int, ...] = ()
    draft_budget: int = 0
    draft_cap: tuple[DraftCap, ...] = ()
    draft_temperature: tuple[float, ...] = ()
    graph_rows: int = 0
    max_len_hi: int = 0
    snapshots: tuple[SnapshotSave, ...] = ()
    masked: tuple[int, ...] = ()
    group: int = 1

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StepPlan:
        """The plan of one line of `to_json`."""
        data: dict[str, Any] = json.loads(text)
        for name, value in data.items():
            data[name] = _tuples(value)
        for name, kind in _ITEMS.items():
            data[name] = tuple(kind(*item) for item in data[name])
        data["admit"] = tuple(
            item._replace(sampling=RowSampling(*item.sampling)) for item in data["admit"]
        )
        return cls(**data)


_ITEMS: dict[str, Any] = {
    "admit": Admit,
    "pages": PageAppend,
    "prefill": Prefill,
    "draft_cap": DraftCap,
    "snapshots": SnapshotSave,
}


def _tuples(value: Any) -> Any:
    """JSON lists back to tuples, all the way down."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True)
class StepMasks:
    """What the grammars of `StepPlan.masked` allow in a step; each of these rows is named once.

    Attributes:
        row: [n] int32, ascending, rows with masks.
        words: [n, 1 + cap, ceil(vocab / 32)] int32: ids that may come next, then after each draft
            of the row; bit i of word w stands for id 32 w + i.
        legal: [n] int32, leading drafts that may be verified, 0..cap; masks behind them are not
            looked at.
        free: rows that need no mask in this step, or have ended.
        late: rows whose masks are not ready; they generate nothing in this step and compute the
            same position again in the next one.
    """

    row: NDArray[np.int32]
    words: NDArray[np.int32]
    legal: NDArray[np.int32]
    free: tuple[int, ...] = ()
    late: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        """Whether some row is not free."""
        return bool(len(self.row) or self.late)

    def covers(self, masked: tuple[int, ...]) -> bool:
        """Whether the rows are those of a plan."""
        return sorted((*self.row.tolist(), *self.free, *self.late)) == sorted(masked)


@dataclass(frozen=True)
class TopLogprobs:
    """Log-probabilities of generated tokens, aligned with `StepResult.tokens`.

    chosen [rows, 1 + cap] fp32 and ranks [rows, 1 + cap] int32 (1 = likeliest); ids and values
    [rows, 1 + cap, k] by value descending, id ascending, id -1 = none.
    """

    chosen: NDArray[np.float32]
    ranks: NDArray[np.int32]
    ids: NDArray[np.int32]
    values: NDArray[np.float32]


class PromptLogprobs(NamedTuple):
    """Log-probabilities of a row's known tokens [start, start + n), each given those before it.

    The arrays of `logprobs` have shape [n] and [n, k].
    """

    row: int
    start: int
    logprobs: TopLogprobs


@dataclass(frozen=True)
class StepResult:
    """What a step produced, over its decoding and emitting rows; arrays are the caller's own.

    Attributes:
        number: of the plan.
        row: [n] int32.
        verified: [n] int32, drafts that were checked.
        accepted: [n] int32, how many of them were right.
        tokens: [n, 1 + cap] int32, generated tokens, accepted drafts first; -1 = none. A row that
            had already ended, or is flagged NaN or EMPTY, has none.
        flags: [n] int32, bits FLAG_*.
        confidence: [n, cap] fp32, raw confidences (logits) of the drafts for the next step, each
            given that the drafts before it are right; 0 = none.
        drafts: [n, cap] int32, the drafts for the next step, -1 = none; [0, 0] if nothing proposes
            any.
        logprobs: of generated tokens, if any row asked for them.
        prompt_logprobs: of prompt tokens computed in this step, for rows that asked for them.
        seconds: time on the device.
    """

    number: int
    row: NDArray[np.int32]
    verified: NDArray[np.int32]
    accepted: NDArray[np.int32]
    tokens: NDArray[np.int32]
    flags: NDArray[np.int32]
    confidence: NDArray[np.float32]
    drafts: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    logprobs: TopLogprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    seconds: float = 0.0

    @property
    def generated(self) -> NDArray[np.int32]:
        """[n] int32, tokens a row generated."""
        return (self.tokens >= 0).sum(axis=1, dtype=np.int32)

    def equal(self, other: StepResult) -> bool:
        """Whether everything but the time is equal, bit by bit."""
        names = [f.name for f in fields(self) if not f.name.endswith(("logprobs", "seconds"))]
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)
