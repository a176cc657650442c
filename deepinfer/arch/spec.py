"""The architecture as plain numbers: sizes, layer roles, derived lengths.

Field names are the keys of `config.json` (`text_config`) where one exists. Torch-free; it knows
nothing of files or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

LayerMode = Literal["window", "full", "reindex", "reuse"]


@dataclass(frozen=True)
class RopeScaling:
    """YaRN numbers (`rope_scaling`); they apply to layers with a compressed branch only."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Engram:
    """The n-gram memory; one entry a layer in `layer_ids` and `num_embeddings` (table rows)."""

    layer_ids: tuple[int, ...]
    num_embeddings: tuple[int, ...]
    max_ngram_size: int
    vocab_size: int
    n_heads: int
    head_dim: int
    pad_token_id: int
    compressed_vocab_size: int

    @property
    def columns(self) -> int:
        """Table rows a token looks up in one layer: n-gram sizes 2..max times heads."""
        return (self.max_ngram_size - 1) * self.n_heads


@dataclass(frozen=True)
class Draft:
    """The DSpark stages (`mtp.*`): `stages` blocks that propose `block_size` tokens at once."""

    stages: int
    block_size: int
    noise_token_id: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    n_routed_experts: int
    num_experts_per_tok: int


@dataclass(frozen=True)
class Vision:
    """The image tower; `num_hidden_layers` 0 means that the checkpoint has none."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


@dataclass(frozen=True)
class Layer:
    """What one backbone layer does.

    `kv_source` owns the compressed entries this layer reads, `index_source` the layer whose
    selection it uses; both are None without a compressed branch. `mode`: "window" (no compressed
    branch), "full" (owns entries and selects), "reindex" (selects among another's entries),
    "reuse" (takes the selection of `index_source`).
    """

    index: int
    ratio: int
    mode: LayerMode
    kv_source: int | None
    index_source: int | None
    engram: int | None  # position in Engram.layer_ids

    @property
    def owns_kv(self) -> bool:
        """Whether it has a compressor and stores entries and index keys."""
        return self.kv_source == self.index

    @property
    def selects(self) -> bool:
        """Whether it has an indexer of its own."""
        return self.index_source == self.index


@dataclass(frozen=True)
class Arch:
    """DeepSeek-V4.1 text network. Sizes are in elements, positions in tokens."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    moe_intermediate_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int | None
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    engram: Engram | None
    draft: Draft | None
    vision: Vision | None
    weight_block: int = 32

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """One role a backbone layer; a layer reads from the nearest source at or below it."""
        return tuple(self._layer(index) for index in range(self.num_hidden_layers))

    def _layer(self, index: int) -> Layer:
        ratio = self.compress_ratios[index]
        engram = None
        if self.engram is not None and index in self.engram.layer_ids:
            engram = self.engram.layer_ids.index(index)
        if ratio == 0:
            return Layer(index, 0, "window", None, None, engram)
        kv_source = max(s for s in self.kv_source_layer_ids if s <= index)
        index_source = max(s for s in self.index_source_layer_ids if s <= index)
        mode: LayerMode = "reuse"
        if index_source == index:
            mode = "full" if kv_source == index else "reindex"
        return Layer(index, ratio, mode, kv_source, index_source, engram)

    @property
    def boundary_layer(self) -> int | None:
        """First ratio-1 layer: prompt rows below the decoder start stop inside it. None without."""
        return next((layer.index for layer in self.layers if layer.ratio == 1), None)

    @property
    def max_draft(self) -> int:
        """Most draft tokens one verification step can hold."""
        return 0 if self.draft is None else self.draft.block_size

    @property
    def rows_in_flight(self) -> int:
        """Rows that may lie beyond the committed length: one running and one planned step."""
        return 2 * (self.max_draft + 1)

    @property
    def ring_rows(self) -> int:
        """Rows of a window or draft ring (140 in the release)."""
        return self.sliding_window + self.rows_in_flight

    @property
    def pair_rows(self) -> int:
        """Rows of a pair-state ring (14 in the release)."""
        return 2 + self.rows_in_flight

    @property
    def decoder_keep(self) -> int:
        """Prompt rows that run the decoder layers under bounded replay (140 in the release)."""
        return self.sliding_window + self.rows_in_flight

    @property
    def hc_coefficients(self) -> int:
        """Numbers a sub-layer derives from the streams: pre, post and combination."""
        return (2 + self.hc_mult) * self.hc_mult

    @property
    def softmax_scale(self) -> float:
        """Factor on query-key products of attention."""
        return self.head_dim**-0.5

    @property
    def index_scale(self) -> float:
        """Factor on the index head weights; exactly 2^-6 in the release."""
        return (self.index_head_dim * self.index_n_heads) ** -0.5
