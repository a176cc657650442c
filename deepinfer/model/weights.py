"""Weights of the network, read from a source part by part and packed for their operations.

Every tensor is read into its final place (or into a packing that replaces it at once), so that
memory stays near the resident weights. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch import Arch, Layer
from deepinfer.model.engram_table import EngramTable, Placement, open_table
from deepinfer.model.numerics import Numerics
from deepinfer.model.operations import Operations
from deepinfer.model.source import TensorSource, read
from deepinfer.ops.compress import CompressorWeights
from deepinfer.ops.experts import ExpertWeights
from deepinfer.ops.formats import (
    Fp4Weight,
    Fp8Weight,
    dequantise_fp4_weight,
    dequantise_fp8_weight,
)
from deepinfer.ops.grouped_output import OutputWeights
from deepinfer.ops.low_rank import LowRankWeights
from deepinfer.ops.markov_draft import MarkovWeights
from deepinfer.ops.mhc_boundary import HyperWeights
from deepinfer.ops.shared_expert import SharedWeights


@dataclass(frozen=True)
class AttentionWeights:
    """Projections that every layer and draft stage has."""

    sink: Tensor
    low_rank: LowRankWeights
    wq_b: Fp8Weight | Tensor
    kv_norm: Tensor
    output: OutputWeights


@dataclass(frozen=True)
class ExpertLayerWeights:
    """Gate, routed experts and the shared expert; `bias` is the text bias."""

    gate: Tensor
    bias: Tensor
    routed: ExpertWeights
    shared: SharedWeights


@dataclass(frozen=True)
class BlockWeights:
    """What backbone layers and draft stages share; `hyper_*` are the two boundaries."""

    hyper_attn: HyperWeights
    attention: AttentionWeights
    hyper_ffn: HyperWeights
    ffn: ExpertLayerWeights


@dataclass(frozen=True)
class IndexerWeights:
    """wq_b [heads * index_head_dim, q_lora_rank]; weights_proj [heads, hidden]."""

    wq_b: Fp8Weight | Tensor
    weights_proj: Tensor


@dataclass(frozen=True)
class EngramWeights:
    """Projection, gate weights [m, hidden] and the row table of one Engram layer."""

    wkv: Fp8Weight | Tensor
    q_weight: Tensor
    k_weight: Tensor
    table: EngramTable


@dataclass(frozen=True)
class LayerWeights:
    """One backbone layer; parts that its role does not have are None."""

    block: BlockWeights
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None
    engram: EngramWeights | None


@dataclass(frozen=True)
class DraftWeights:
    """The draft stages and their heads; `keys` are their `wkv`, for features without a query."""

    stages: tuple[BlockWeights, ...]
    keys: tuple[Fp8Weight | Tensor, ...]
    main_proj: Fp8Weight | Tensor
    main_norm: Tensor
    norm: Tensor
    markov: MarkovWeights


@dataclass(frozen=True)
class ModelWeights:
    """The whole text network."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    draft: DraftWeights | None


class WeightLoader:
    """Reads and packs weights.

    Args:
        source: where tensors come from.
        arch: the architecture they belong to.
        ops: bound operations; each packs the weights it reads.
        numerics: with "noquant" every weight is widened to fp32 instead.
        device: where the weights go.
        engram: placement of the Engram tables.
    """

    def __init__(
        self,
        source: TensorSource,
        arch: Arch,
        ops: Operations,
        numerics: Numerics,
        device: torch.device,
        engram: Placement = "device",
    ):
        self.source = source
        self.arch = arch
        self.ops = ops
        self.numerics = numerics
        self.device = device
        self.engram_placement: Placement = engram

    def load(self) -> ModelWeights:
        """Read everything except vision; draft stages only if the source holds them."""
        arch = self.arch
        draft = None
        if arch.draft is not None and "mtp.0.attn_norm.weight" in self.source.specs:
            draft = self._draft(arch.draft.stages)
        return ModelWeights(
            embed=self._plain("embed.weight"),
            layers=tuple(self._layer(layer) for layer in arch.layers),
            norm=self._plain("norm.weight"),
            head=self.ops.head.pack(self._plain("head.weight")),
            draft=draft,
        )

    def _plain(self, name: str) -> Tensor:
        tensor = read(self.source, name, self.device)
        return tensor if self.numerics.quantised else tensor.float()

    def _fp8_raw(self, *names: str) -> Fp8Weight:
        """One or several FP8 matrices stacked by rows; several need row counts of whole blocks."""
        specs = [self.source.specs[f"{name}.weight"].shape for name in names]
        scales = [self.source.specs[f"{name}.scale"].shape for name in names]
        assert len(names) == 1 or all(rows % 32 == 0 for rows, _ in specs)
        codes = self._bytes(sum(rows for rows, _ in specs), specs[0][1])
        scale = self._bytes(sum(rows for rows, _ in scales), scales[0][1])
        row = scale_row = 0
        for name, spec, sizes in zip(names, specs, scales, strict=True):
            self.source.read_into(f"{name}.weight", codes[row : row + spec[0]])
            self.source.read_into(f"{name}.scale", scale[scale_row : scale_row + sizes[0]])
            row, scale_row = row + spec[0], scale_row + sizes[0]
        return Fp8Weight(codes, scale)

    def _bytes(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.uint8, device=self.device)

    def _fp8(self, *names: str) -> Fp8Weight | Tensor:
        raw = self._fp8_raw(*names)
        return raw if self.numerics.quantised else dequantise_fp8_weight(raw)

    def _linear(self, name: str) -> Fp8Weight | Tensor:
        weight = self._fp8(name)
        return self.ops.linear_fp8.pack(weight)

    def _fp4_stack(self, prefix: str, names: tuple[str, ...], count: int) -> Fp4Weight | Tensor:
        """Experts [count, rows of all `names`, columns], read into place one after another."""
        first = [self.source.specs[f"{prefix}.0.{name}.weight"].shape for name in names]
        rows, columns = sum(shape[0] for shape in first), first[0][1]
        codes = self._bytes(count, rows, columns)
        scale = self._bytes(count, rows, columns // 16)
        for expert in range(count):
            row = 0
            for name, shape in zip(names, first, strict=True):
                part = slice(row, row + shape[0])
                self.source.read_into(f"{prefix}.{expert}.{name}.weight", codes[expert, part])
                self.source.read_into(f"{prefix}.{expert}.{name}.scale", scale[expert, part])
                row += shape[0]
        raw = Fp4Weight(codes, scale)
        return raw if self.numerics.quantised else dequantise_fp4_weight(raw)

    def _hyper(self, prefix: str, side: str) -> HyperWeights:
        return self.ops.mhc_boundary.pack(
            HyperWeights(
                fn=self._plain(f"{prefix}hc_{side}_fn"),
                base=self._plain(f"{prefix}hc_{side}_base"),
                scale=self._plain(f"{prefix}hc_{side}_scale"),
                norm=self._plain(f"{prefix}{side}_norm.weight"),
            )
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        return AttentionWeights(
            sink=self._plain(f"{prefix}attn_sink"),
            low_rank=self.ops.low_rank.pack(
                LowRankWeights(
                    wq_a=self._fp8(f"{prefix}wq_a"),
                    wkv=self._fp8(f"{prefix}wkv"),
                    q_norm=self._plain(f"{prefix}q_norm.weight"),
                )
            ),
            wq_b=self._linear(f"{prefix}wq_b"),
            kv_norm=self._plain(f"{prefix}kv_norm.weight"),
            output=self.ops.grouped_output.pack(
                OutputWeights(self._fp8(f"{prefix}wo_a"), self._fp8(f"{prefix}wo_b"))
            ),
        )

    def _block(self, prefix: str, experts: int) -> BlockWeights:
        ffn = f"{prefix}ffn."
        routed = ExpertWeights(
            self._fp4_stack(f"{ffn}experts", ("w1", "w3"), experts),
            self._fp4_stack(f"{ffn}experts", ("w2",), experts),
        )
        shared = f"{ffn}shared_experts."
        return BlockWeights(
            hyper_attn=self._hyper(prefix, "attn"),
            attention=self._attention(f"{prefix}attn."),
            hyper_ffn=self._hyper(prefix, "ffn"),
            ffn=ExpertLayerWeights(
                gate=self.ops.route.pack(self._plain(f"{ffn}gate.weight")),
                bias=self._plain(f"{ffn}gate.bias"),
                routed=self.ops.experts.pack(routed),
                shared=self.ops.shared_expert.pack(
                    SharedWeights(self._fp8(f"{shared}w1", f"{shared}w3"), self._fp8(f"{shared}w2"))
                ),
            ),
        )

    def _layer(self, layer: Layer) -> LayerWeights:
        prefix = f"layers.{layer.index}."
        return LayerWeights(
            block=self._block(prefix, self.arch.n_routed_experts),
            compressor=self._compressor(f"{prefix}attn.", layer.ratio) if layer.owns_kv else None,
            indexer=self._indexer(f"{prefix}attn.indexer.") if layer.selects else None,
            engram=self._engram(layer) if layer.engram is not None else None,
        )

    def _compressor(self, prefix: str, ratio: int) -> CompressorWeights:
        gate = self._plain(f"{prefix}compressor.wgate.weight") if ratio == 2 else None
        return self.ops.compress.pack(
            CompressorWeights(
                wkv=self._plain(f"{prefix}compressor.wkv.weight"),
                wgate=gate,
                norm=self._plain(f"{prefix}compressor.norm.weight"),
                wk=self._plain(f"{prefix}indexer.wk.weight"),
                k_norm=self._plain(f"{prefix}indexer.k_norm.weight"),
            )
        )

    def _indexer(self, prefix: str) -> IndexerWeights:
        return IndexerWeights(
            self._linear(f"{prefix}wq_b"), self._plain(f"{prefix}weights_proj.weight")
        )

    def _engram(self, layer: Layer) -> EngramWeights:
        prefix = f"layers.{layer.index}.engram."
        return EngramWeights(
            wkv=self._linear(f"{prefix}wkv"),
            q_weight=self._plain(f"{prefix}q_weight"),
            k_weight=self._plain(f"{prefix}k_weight"),
            table=open_table(self.source, layer.index, self.engram_placement, self.device),
        )

    def _draft(self, stages: int) -> DraftWeights:
        draft = self.arch.draft
        assert draft is not None
        last = f"mtp.{stages - 1}."
        return DraftWeights(
            stages=tuple(self._block(f"mtp.{i}.", draft.n_routed_experts) for i in range(stages)),
            keys=tuple(self._linear(f"mtp.{i}.attn.wkv") for i in range(stages)),
            main_proj=self._linear("mtp.0.main_proj"),
            main_norm=self._plain("mtp.0.main_norm.weight"),
            norm=self._plain(f"{last}norm.weight"),
            markov=self.ops.markov_draft.pack(
                MarkovWeights(
                    embed=self._plain(f"{last}markov_head.embed.weight"),
                    head=self._plain(f"{last}markov_head.head.weight"),
                    confidence=self._plain(f"{last}confidence_head.proj.weight"),
                )
            ),
        )
