"""What a scheduler may use (`Limits`) and what it prefers (`Policy`): plain numbers.

Knows nothing of the architecture they were derived from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from deepinfer.errors import ConfigError

PASSED_OVER_LIMIT = 64
"""Steps in which a later request may be admitted before a waiting one; then that one goes first."""

LOOK_AHEAD = 64
"""Waiting requests examined in one step; those behind them wait for the next step."""


@dataclass(frozen=True)
class Caching:
    """How prompts share what is computed already.

    Attributes:
        first_key: of the key chain (`cache.first_key`).
        replay: positions before a hit that are computed again for their windows; with `exact` as
            many as make every later number the same as without a hit, else the bounded replay.
        exact: see `replay`.
        snapshots: places for window snapshots on the host, 0 = none.
        ttl: seconds a snapshot is kept after its last use.
    """

    first_key: bytes
    replay: int
    exact: bool = True
    snapshots: int = 0
    ttl: float = 300.0


@dataclass(frozen=True)
class Drafting:
    """How many drafts a step verifies.

    Attributes:
        adaptive: as many as pay by the measured time of steps and the drafter's confidences; else
            all that the step has room for, up to `Policy.draft_tokens`.
        temperature: of the confidences at the start, one for all drafts of a block or one each.
    """

    adaptive: bool = False
    temperature: float | tuple[float, ...] = 1.0


@dataclass(frozen=True)
class Limits:
    """What the device was built for.

    Attributes:
        num_pages: pages 1..num_pages; page 0 is reserved and not counted.
        num_slots: rows and state slots 1..num_slots; number 0 is reserved and not counted. A few
            more than `max_num_seqs` let new requests in while ended ones await their last step.
        max_model_len: most tokens of prompt and output of one request.
        max_num_batched_tokens: most tokens computed in a step: prefill, decoding and drafts.
        max_num_seqs: most requests computed in a step.
        max_draft: most drafts of a row verified in a step; 0 = no speculation.
        drafting: how many of them a step verifies.
        page_tokens: tokens a page.
        decoder_keep: last prompt tokens that run the decoder layers; None = all of them (exact).
        caching: how prompts share pages; None = they do not.
        graph_sizes: row counts of captured graphs of decoding steps, ascending; () = eager.

    Raises:
        ConfigError: a number is out of range or contradicts another.
    """

    num_pages: int
    num_slots: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_draft: int = 0
    drafting: Drafting = Drafting()
    page_tokens: int = 128
    decoder_keep: int | None = None
    caching: Caching | None = None
    graph_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name == "max_draft" else 1
            if isinstance(value, int) and value < least:
                raise ConfigError(f"{item.name} {value}: use at least {least}")
        if self.max_model_len < 2:
            raise ConfigError(f"max_model_len {self.max_model_len}: use at least 2")
        if self.num_slots < self.max_num_seqs:
            raise ConfigError(
                f"max_num_seqs {self.max_num_seqs} exceeds the {self.num_slots} slots; lower it"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens {self.max_num_batched_tokens}: use at least max_num_seqs "
                f"({self.max_num_seqs}), one token a request"
            )
        caching, keep = self.caching, self.decoder_keep or 0
        if caching is not None and not caching.exact and caching.replay < keep:
            raise ConfigError(
                f"a bounded replay of {caching.replay} rows does not reach back to the last {keep} "
                "prompt rows, which run the decoder layers; use at least decoder_keep"
            )
        if list(self.graph_sizes) != sorted(set(self.graph_sizes)) or 0 in self.graph_sizes:
            raise ConfigError(f"graph_sizes {self.graph_sizes}: use ascending positive sizes")

    def graph_rows(self, decoding: int) -> int:
        """Rows of the captured graph for so many decoding rows, 0 = there is none."""
        return next((size for size in self.graph_sizes if size >= decoding), 0)


@dataclass(frozen=True)
class Policy:
    """How a step's tokens are shared; every decoding row has its one token before all else.

    Attributes:
        name: how users call it.
        prefill_floor: tokens that drafts leave to waiting prompts, if there are any.
        prefill_beside_decode: most prefill tokens in a step that also decodes; it bounds the time
            between two tokens of a user. A step without decoding rows uses the whole budget.
        slice_tokens: most prefill tokens of one request while others want some too.
        draft_tokens: most drafts verified in a step over all rows, unless `Drafting.adaptive`;
            past it the device is busy with sure tokens, a draft costs more than it may save.
        headroom_percent: part of all pages that an admission leaves free, so that the rows that
            run already can grow; not kept when nothing runs.
    """

    name: Literal["latency", "throughput"]
    prefill_floor: int
    prefill_beside_decode: int
    slice_tokens: int
    draft_tokens: int
    headroom_percent: int


# First numbers, from rooflines rather than from measured runs. At batch sizes up to about 64 rows a
# step reads weights, and 512 more tokens cost little; a prefill slice of 1,024 tokens costs about
# as much as the step beside it.
LATENCY = Policy(
    name="latency",
    prefill_floor=256,
    prefill_beside_decode=1024,
    slice_tokens=512,
    draft_tokens=512,
    headroom_percent=5,
)
# Prompts fill the whole budget, drafts take what is left of it.
THROUGHPUT = Policy(
    name="throughput",
    prefill_floor=1 << 30,
    prefill_beside_decode=1 << 30,
    slice_tokens=1 << 30,
    draft_tokens=128,
    headroom_percent=1,
)
POLICIES = {policy.name: policy for policy in (LATENCY, THROUGHPUT)}


def drafting_policy(policy: Policy, drafting: Drafting) -> Policy:
    """The policy for a way to choose drafts: measured time makes its limit of them needless."""
    return replace(policy, draft_tokens=1 << 30) if drafting.adaptive else policy
