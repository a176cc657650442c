"""The complete tensor list of a checkpoint, derived from the architecture. Torch-free.

Source: `spec/model.md` 11.2 (text, drafter), 13 (vision). Dtype strings are those of safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deepinfer.arch.spec import Arch, Layer, Vision

Dtype = Literal["BF16", "F32", "F8_E4M3", "F8_E8M0", "I8"]
Part = Literal["embedding", "backbone", "engram", "draft", "vision"]

ITEM_BYTES: dict[Dtype, int] = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


@dataclass(frozen=True)
class TensorSpec:
    """One stored tensor: name, dtype, shape, and the part and role it is counted under."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    part: Part
    role: str

    @property
    def elements(self) -> int:
        """Stored items, the product of the shape."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def params(self) -> int:
        """Parameters: two a byte for I8 (packed FP4), none for scales."""
        if self.dtype == "F8_E8M0":
            return 0
        return self.elements * (2 if self.dtype == "I8" else 1)


@dataclass(frozen=True)
class _Maker:
    """Builds specs under one name prefix, part and role."""

    prefix: str
    part: Part
    role: str
    block: int

    def plain(self, name: str, dtype: Dtype, *shape: int) -> Iterator[TensorSpec]:
        yield TensorSpec(self.prefix + name, dtype, shape, self.part, self.role)

    def fp8(self, name: str, out: int, inner: int) -> Iterator[TensorSpec]:
        """E4M3 weight [out, inner] and one E8M0 scale a block of `block` x `block`."""
        yield from self.plain(f"{name}.weight", "F8_E4M3", out, inner)
        yield from self.plain(
            f"{name}.scale", "F8_E8M0", -(-out // self.block), -(-inner // self.block)
        )

    def fp4(self, name: str, out: int, inner: int) -> Iterator[TensorSpec]:
        """Two E2M1 codes a byte, low nibble = even column; one E8M0 scale per 32 columns."""
        yield from self.plain(f"{name}.weight", "I8", out, inner // 2)
        yield from self.plain(f"{name}.scale", "F8_E8M0", out, inner // 32)


def tensor_specs(arch: Arch) -> tuple[TensorSpec, ...]:
    """Every tensor of a checkpoint of this architecture, vision included, in layer order."""
    return tuple(_all(arch))


def _all(arch: Arch) -> Iterator[TensorSpec]:
    ends = _Maker("", "embedding", "embedding and head", arch.weight_block)
    yield from ends.plain("embed.weight", "BF16", arch.vocab_size, arch.hidden_size)
    for layer in arch.layers:
        yield from _layer(arch, layer)
    yield from ends.plain("norm.weight", "BF16", arch.hidden_size)
    yield from ends.plain("head.weight", "BF16", arch.vocab_size, arch.hidden_size)
    if arch.draft is not None:
        for stage in range(arch.draft.stages):
            yield from _stage(arch, stage)
    if arch.vision is not None and arch.vision.num_hidden_layers:
        yield from _vision(arch, arch.vision)


def _layer(arch: Arch, layer: Layer) -> Iterator[TensorSpec]:
    role = f"{layer.mode}, ratio {layer.ratio}" if layer.ratio else "window only"
    make = _Maker(f"layers.{layer.index}.", "backbone", role, arch.weight_block)
    if layer.engram is not None:
        yield from _engram(arch, layer.index, layer.engram)
    yield from _block(arch, make, arch.n_routed_experts)
    if layer.owns_kv:
        yield from _compressor(arch, make, layer.ratio)
    if layer.selects:
        yield from make.fp8(
            "attn.indexer.wq_b", arch.index_n_heads * arch.index_head_dim, arch.q_lora_rank
        )
        yield from make.plain(
            "attn.indexer.weights_proj.weight", "BF16", arch.index_n_heads, arch.hidden_size
        )


def _compressor(arch: Arch, make: _Maker, ratio: int) -> Iterator[TensorSpec]:
    yield from make.plain("attn.compressor.wkv.weight", "BF16", arch.head_dim, arch.hidden_size)
    if ratio == 2:
        yield from make.plain(
            "attn.compressor.wgate.weight", "BF16", arch.head_dim, arch.hidden_size
        )
    yield from make.plain("attn.compressor.norm.weight", "BF16", arch.head_dim)
    yield from make.plain("attn.indexer.wk.weight", "BF16", arch.index_head_dim, arch.head_dim)
    yield from make.plain("attn.indexer.k_norm.weight", "BF16", arch.index_head_dim)


def _block(arch: Arch, make: _Maker, experts: int) -> Iterator[TensorSpec]:
    """What backbone layers and draft stages have in common."""
    d, inner, mult = arch.hidden_size, arch.moe_intermediate_size, arch.hc_mult
    heads, width = arch.num_attention_heads, arch.head_dim
    yield from make.plain("attn.attn_sink", "F32", heads)
    yield from make.fp8("attn.wq_a", arch.q_lora_rank, d)
    yield from make.plain("attn.q_norm.weight", "BF16", arch.q_lora_rank)
    yield from make.fp8("attn.wq_b", heads * width, arch.q_lora_rank)
    yield from make.fp8("attn.wkv", width, d)
    yield from make.plain("attn.kv_norm.weight", "BF16", width)
    yield from make.fp8(
        "attn.wo_a", arch.o_groups * arch.o_lora_rank, heads * width // arch.o_groups
    )
    yield from make.fp8("attn.wo_b", d, arch.o_groups * arch.o_lora_rank)
    yield from make.plain("attn_norm.weight", "BF16", d)
    yield from make.plain("ffn_norm.weight", "BF16", d)
    for side in ("attn", "ffn"):
        yield from make.plain(f"hc_{side}_fn", "F32", arch.hc_coefficients, mult * d)
        yield from make.plain(f"hc_{side}_base", "F32", arch.hc_coefficients)
        yield from make.plain(f"hc_{side}_scale", "F32", 3)
    yield from make.plain("ffn.gate.weight", "BF16", experts, d)
    yield from make.plain("ffn.gate.bias", "F32", experts)
    yield from make.plain("ffn.gate.bias_vl", "F32", experts)
    for expert in range(experts):
        yield from make.fp4(f"ffn.experts.{expert}.w1", inner, d)
        yield from make.fp4(f"ffn.experts.{expert}.w3", inner, d)
        yield from make.fp4(f"ffn.experts.{expert}.w2", d, inner)
    yield from make.fp8("ffn.shared_experts.w1", inner, d)
    yield from make.fp8("ffn.shared_experts.w3", inner, d)
    yield from make.fp8("ffn.shared_experts.w2", d, inner)


def _engram(arch: Arch, layer: int, which: int) -> Iterator[TensorSpec]:
    engram = arch.engram
    assert engram is not None
    table = _Maker(f"layers.{layer}.engram.", "engram", "engram tables", arch.weight_block)
    rows = engram.num_embeddings[which]
    yield from table.plain("embed.weight", "F8_E4M3", rows, engram.head_dim)
    yield from table.plain("embed.scale", "F8_E8M0", rows, engram.head_dim // 32)
    make = _Maker(f"layers.{layer}.engram.", "backbone", "engram projections", arch.weight_block)
    yield from make.fp8(
        "wkv", (arch.hc_mult + 1) * arch.hidden_size, engram.columns * engram.head_dim
    )
    yield from make.plain("q_weight", "BF16", arch.hc_mult, arch.hidden_size)
    yield from make.plain("k_weight", "BF16", arch.hc_mult, arch.hidden_size)


def _stage(arch: Arch, stage: int) -> Iterator[TensorSpec]:
    draft = arch.draft
    assert draft is not None
    make = _Maker(f"mtp.{stage}.", "draft", "draft stage", arch.weight_block)
    d = arch.hidden_size
    yield from _block(arch, make, draft.n_routed_experts)
    if stage == 0:
        yield from make.fp8("main_proj", d, len(draft.target_layer_ids) * d)
        yield from make.plain("main_norm.weight", "BF16", d)
    if stage == draft.stages - 1:
        yield from make.plain("norm.weight", "BF16", d)
        for name in ("embed", "head"):
            yield from make.plain(
                f"markov_head.{name}.weight", "BF16", arch.vocab_size, draft.markov_rank
            )
        yield from make.plain("confidence_head.proj.weight", "BF16", 1, d + draft.markov_rank)


def _vision(arch: Arch, vision: Vision) -> Iterator[TensorSpec]:
    make = _Maker("", "vision", "vision", arch.weight_block)
    width, inner = vision.hidden_size, vision.intermediate_size
    pixels = 3 * vision.patch_size**2
    yield from make.plain("vision.patch_embed.proj.weight", "BF16", width, pixels)
    yield from make.plain("vision.patch_embed.proj.bias", "BF16", width)
    for index in range(vision.num_hidden_layers):
        block = f"vision.blocks.{index}."
        yield from make.plain(f"{block}norm1.weight", "BF16", width)
        yield from make.plain(f"{block}attn.wqkv.weight", "BF16", 3 * width, width)
        yield from make.plain(f"{block}attn.wqkv.bias", "BF16", 3 * width)
        yield from make.plain(f"{block}attn.wo.weight", "BF16", width, width)
        yield from make.plain(f"{block}attn.wo.bias", "BF16", width)
        yield from make.plain(f"{block}norm2.weight", "BF16", width)
        yield from make.plain(f"{block}mlp.w1.weight", "BF16", 2 * inner, width)
        yield from make.plain(f"{block}mlp.w2.weight", "BF16", width, inner)
    yield from make.plain("vision.norm.weight", "BF16", width)
    merged = width * vision.downsample_ratio**2
    d = arch.hidden_size
    yield from make.plain("aligner.w1.weight", "BF16", d, merged)
    yield from make.plain("aligner.w1.bias", "BF16", d)
    yield from make.plain("aligner.w2.weight", "BF16", d, d)
    yield from make.plain("aligner.w2.bias", "BF16", d)
    for name in ("image_start", "image_end", "image_newline"):
        yield from make.plain(name, "BF16", d)
