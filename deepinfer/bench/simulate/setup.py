"""From an architecture and a few wishes to the limits that a simulation uses.

The rules are those of `engine/sharing.py` and `engine/options.py`, without a device. Knows nothing
of traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deepinfer.arch import PAGE_TOKENS, Arch, PageLayout, Records, load_arch
from deepinfer.cache import first_key
from deepinfer.errors import ConfigError
from deepinfer.scheduler import Caching, Drafting, Limits

CachingMode = Literal["off", "exact", "bounded"]
_RELEASE = Path(__file__).parents[1] / "release.json"
_SPARE_SLOTS = 4  # rows that ended and await their last step


@dataclass(frozen=True)
class Wishes:
    """What a simulated engine has.

    Attributes:
        pages: of the pool; None: as many as `pool_bytes` hold.
        pool_bytes: memory of pages.
        max_model_len: most tokens of prompt and output; None: what the pages hold.
        max_num_seqs, max_num_batched_tokens: see `Limits`.
        drafts: verified a step and row, at most.
        adaptive: as many of them as pay, by the time of simulated steps.
        caching: "off", or what a hit replays: "exact" or "bounded".
        snapshots: window snapshots kept, 0 = none.
        ttl: seconds a snapshot is kept after its last use.
    """

    pages: int | None = None
    pool_bytes: int = 1 << 30
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    drafts: int = 0
    adaptive: bool = False
    caching: CachingMode = "bounded"
    snapshots: int = 198  # 256 MiB in the release
    ttl: float = 300.0


def release_arch() -> Arch:
    """The architecture of the release."""
    return load_arch(_RELEASE)


def simulated_limits(arch: Arch, wishes: Wishes) -> Limits:
    """Limits of an engine for `arch` with bounded decoder replay.

    Raises:
        ConfigError: the pool holds no page, or the limits contradict.
    """
    pages = wishes.pages
    if pages is None:
        pages = wishes.pool_bytes // PageLayout.of(arch).bytes
    if pages < 1:
        raise ConfigError(f"a pool of {wishes.pool_bytes:,} B holds no page; make it larger")
    if not 0 <= wishes.drafts <= arch.max_draft:
        raise ConfigError(f"drafts {wishes.drafts}: use 0 to {arch.max_draft}")
    longest = min(wishes.max_model_len or arch.max_position_embeddings, pages * PAGE_TOKENS)
    return Limits(
        num_pages=pages,
        num_slots=wishes.max_num_seqs + _SPARE_SLOTS,
        max_model_len=longest,
        max_num_batched_tokens=wishes.max_num_batched_tokens,
        max_num_seqs=wishes.max_num_seqs,
        max_draft=wishes.drafts,
        drafting=Drafting(wishes.adaptive),
        decoder_keep=None if arch.boundary_layer is None else arch.decoder_keep,
        caching=_caching(arch, wishes),
    )


def _caching(arch: Arch, wishes: Wishes) -> Caching | None:
    if wishes.caching == "off":
        return None
    exact = wishes.caching == "exact"
    layers = arch.num_hidden_layers if arch.boundary_layer is None else arch.boundary_layer
    replay = layers * (arch.sliding_window - 1) if exact else arch.decoder_keep
    return Caching(
        first_key=first_key(b"simulated", repr(Records.of(arch)).encode(), b"", b""),
        replay=replay,
        exact=exact,
        snapshots=0 if arch.boundary_layer is None else wishes.snapshots,
        ttl=wishes.ttl,
    )
