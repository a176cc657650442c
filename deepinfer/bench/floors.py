"""Least time of a decoding or a prefill step: bytes that must be read, products that must be made.

All of it follows from the architecture and the numbers of a point (performance.md 3.3, 3.5, 3.7);
rates come from whoever asks. Knows nothing of measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from deepinfer.arch import Arch, Records, tensor_specs
from deepinfer.arch.tensors import TensorSpec

_LAYERS = "layers."


@dataclass(frozen=True)
class Rates:
    """What a device can do a second: bytes read, FLOP in products, FLOP in attention's products."""

    read: float
    matmul: float
    attention: float


H200 = Rates(read=4.3e12, matmul=0.788e15, attention=0.788e15)
"""One H200, bf16 products (performance.md 3.4)."""
SM100 = Rates(read=8e12, matmul=4.5e15, attention=2.25e15)
"""One SM100, FP8 products and bf16 attention (performance.md 3.4)."""


@dataclass(frozen=True)
class Point:
    """A decoding step of one rank.

    Attributes:
        rows: requests that decode.
        length: tokens that each of them knows.
        drafts: drafts verified a row.
    """

    rows: int
    length: int
    drafts: int = 0

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return self.rows * (1 + self.drafts)


@dataclass(frozen=True)
class Prefill:
    """A step that computes prompts only: `requests` with `new` tokens behind `cached` ones each."""

    new: int
    cached: int = 0
    requests: int = 1


@dataclass(frozen=True)
class Floor:
    """A step's least work and time.

    Attributes:
        bytes: read.
        flop: in products, those of attention included.
        memory, compute: seconds that reading and products take.
    """

    bytes: float
    flop: float
    memory: float
    compute: float

    @property
    def seconds(self) -> float:
        """The least time: reading and computing may overlap."""
        return max(self.memory, self.compute)

    @property
    def bound(self) -> Literal["read", "products"]:
        """Which of them it is."""
        return "read" if self.memory >= self.compute else "products"


class Floors:
    """Floors of one rank of a group.

    A rank holds 1 / `ranks` of the routed experts and all else, and chooses among its own experts
    only ("shard equivalence", performance.md 0): distinct experts are counted so.

    Args:
        arch: the whole architecture.
        rates: of the device.
        ranks: of the group.
    """

    def __init__(self, arch: Arch, rates: Rates, ranks: int = 1):
        self.arch, self.rates, self.ranks = arch, rates, ranks
        self._specs = _specs(arch)
        self._records = Records.of(arch)

    def decode(self, point: Point) -> Floor:
        """Floor of a decoding step; drafts that the stages propose are part of it."""
        size = self._dense_bytes + self._cache_bytes(point) * point.rows
        size += self.arch.num_hidden_layers * self._experts_read(point.tokens)
        flop = point.tokens * (self._token_flop + self._index_flop(point.length))
        draft = self.arch.draft
        if draft is not None and point.drafts:
            count = point.rows * draft.block_size
            size += self._draft_bytes + self._head_bytes
            size += draft.stages * self._draft_experts_read(count)
            flop += count * (self._draft_flop + 2 * self._head_params)
        return self._floor(size, flop, point.tokens * self._core(0, self.arch.num_hidden_layers))

    def prefill(self, work: Prefill) -> Floor:
        """Floor of prompts whose last rows alone run the decoder layers."""
        arch = self.arch
        tokens = work.requests * work.new
        kept = work.requests * min(work.new, arch.decoder_keep)
        split = arch.num_hidden_layers if arch.boundary_layer is None else arch.boundary_layer
        flop = tokens * self._flop_a_token(lambda layer: layer < split)
        flop += kept * self._flop_a_token(lambda layer: layer >= split)
        middle = work.cached + work.new / 2
        flop += tokens * middle * self._score_flop * self._scanned(0, split)
        size = self._dense_bytes + split * self._experts_read(tokens)
        size += (arch.num_hidden_layers - split) * self._experts_read(kept)
        core = tokens * self._core(0, split) + kept * self._core(split, arch.num_hidden_layers)
        return self._floor(size, flop, core)

    def distinct(self, tokens: int, experts: int, choices: int) -> float:
        """Expected distinct experts of a rank that so many tokens touch."""
        own = max(experts / self.ranks, 1)
        return own * (1 - (1 - min(choices / own, 1)) ** tokens)

    def _floor(self, size: float, flop: float, core: float) -> Floor:
        seconds = flop / self.rates.matmul + core / self.rates.attention
        return Floor(size, flop + core, size / self.rates.read, seconds)

    def _bytes(self, wanted: Callable[[TensorSpec], bool]) -> float:
        return sum(spec.bytes for spec in self._specs if wanted(spec))

    @cached_property
    def _dense_bytes(self) -> float:
        """What every step reads: backbone without routed experts, and the head."""
        return self._bytes(lambda s: s.part == "backbone" and not _routed(s)) + self._head_bytes

    @cached_property
    def _head_params(self) -> int:
        return self.arch.vocab_size * self.arch.hidden_size

    @property
    def _head_bytes(self) -> int:
        return 2 * self._head_params

    @cached_property
    def _expert_bytes(self) -> float:
        return self._bytes(lambda s: s.name.startswith("layers.0.ffn.experts.0."))

    def _experts_read(self, tokens: int) -> float:
        arch = self.arch
        count = self.distinct(tokens, arch.n_routed_experts, arch.num_experts_per_tok)
        return count * self._expert_bytes

    @cached_property
    def _draft_bytes(self) -> float:
        return self._bytes(lambda s: s.part == "draft" and not _routed(s))

    def _draft_experts_read(self, rows: int) -> float:
        draft = self.arch.draft
        assert draft is not None
        count = self.distinct(rows, draft.n_routed_experts, draft.num_experts_per_tok)
        return count * self._expert_bytes

    @cached_property
    def _token_flop(self) -> float:
        return self._flop_a_token(lambda layer: True) + 2 * self._head_params

    def _flop_a_token(self, chosen: Callable[[int], bool]) -> float:
        """Products with the weights of some backbone layers."""
        arch = self.arch
        chosen_experts = arch.num_experts_per_tok
        return 2 * sum(
            spec.params * (chosen_experts if _routed(spec) else 1)
            for spec in self._specs
            if spec.part == "backbone"
            and _matrix(spec)
            and chosen(int(spec.name.removeprefix(_LAYERS).split(".")[0]))
        )

    @cached_property
    def _draft_flop(self) -> float:
        """Of one row of a block: the stages; what is done once a request is left out."""
        draft = self.arch.draft
        assert draft is not None
        return 2 * sum(
            spec.params * (draft.num_experts_per_tok if _routed(spec) else 1)
            for spec in self._specs
            if spec.part == "draft" and _matrix(spec) and (".attn." in spec.name or _ffn(spec))
        )

    def _core(self, first: int, end: int) -> float:
        """Of attention's two products a token, in layers `first` to `end` - 1."""
        arch = self.arch
        keys = [
            arch.sliding_window + (arch.index_topk if layer.ratio else 0)
            for layer in arch.layers[first:end]
        ]
        return sum(keys) * 4 * arch.num_attention_heads * arch.head_dim

    @property
    def _score_flop(self) -> int:
        return 2 * self.arch.index_n_heads * self.arch.index_head_dim

    def _scanned(self, first: int, end: int) -> float:
        """Keys scanned a known token by the layers that look at all of them."""
        full = (layer for layer in self.arch.layers[first:end] if layer.mode == "full")
        return sum(1 / layer.ratio for layer in full)

    def _candidates(self, length: int) -> int:
        """Keys scored by all layers that look at candidates only."""
        arch = self.arch
        most = min(arch.candidate_topk_blocks * arch.candidate_block_size, length)
        return most * sum(layer.mode == "reindex" for layer in arch.layers)

    def _index_flop(self, length: int) -> float:
        scanned = self._scanned(0, self.arch.num_hidden_layers) * length
        return self._score_flop * (scanned + self._candidates(length))

    def _cache_bytes(self, point: Point) -> float:
        """Of a row; its queries choose the same entries (s = 1)."""
        arch, records = self.arch, self._records
        scanned = self._scanned(0, arch.num_hidden_layers) * point.length
        keys = (scanned + self._candidates(point.length)) * records.index_key.bytes
        chosen = sum(
            min(arch.index_topk, point.length // layer.ratio)
            for layer in arch.layers
            if layer.ratio
        )
        stages = 0 if arch.draft is None else arch.draft.stages
        windows = (arch.num_hidden_layers + stages) * min(arch.sliding_window, point.length)
        return keys + chosen * records.latent.bytes + windows * records.window.bytes


@cache
def _specs(arch: Arch) -> tuple[TensorSpec, ...]:
    """The tensors, of each layer's routed experts only the first."""
    return tuple(s for s in tensor_specs(arch) if not _routed(s) or ".experts.0." in s.name)


def _routed(spec: TensorSpec) -> bool:
    return ".ffn.experts." in spec.name


def _ffn(spec: TensorSpec) -> bool:
    return ".ffn." in spec.name or ".hc_" in spec.name


def _matrix(spec: TensorSpec) -> bool:
    """Whether tokens are multiplied with it (scales have no parameters)."""
    return len(spec.shape) > 1
