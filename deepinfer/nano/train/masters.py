"""The trained numbers: fp32 masters, their quantised working copies, and their stored form.

Names are those of the checkpoint, except that the experts of a layer are one tensor. It does not
know what the network does with them.
Source: `spec/model.md` 11.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch import Arch, TensorSpec, tensor_specs
from deepinfer.model.source import TensorSource, read
from deepinfer.nano.train.quantise import (
    fp4_weight,
    fp4_weight_scale,
    fp8_block_scale,
    fp8_blocks,
    fp8_rows,
)
from deepinfer.ops.formats import (
    Fp4Weight,
    Fp8Weight,
    Quantised,
    dequantise_fp4_weight,
    dequantise_fp8,
    dequantise_fp8_weight,
    encode_e2m1,
    encode_e4m3,
    pack_e2m1,
    quantise_fp8,
)

Weights = Mapping[str, Tensor]
_BIAS = ".gate.bias"
_BIAS_VL = ".gate.bias_vl"
_TABLE = "engram.embed.weight"


@dataclass(frozen=True)
class Kind:
    """How a master is stored: "plain32", "plain16", "fp8" (blocks), "rows" (FP8 rows), "fp4".

    shape: of the master. parts: the stored tensors' names without ".weight"; for stacked matrices
    one a run of rows (fp8), or [expert][matrix] flattened (fp4).
    """

    form: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]


def kinds(arch: Arch) -> dict[str, Kind]:
    """Every master of an architecture by name; `gate.bias` is among them, `bias_vl` is not."""
    found: dict[str, Kind] = {}
    for spec in tensor_specs(arch):
        stacked = ".experts." in spec.name or ".shared_experts." in spec.name
        if spec.part == "vision" or stacked or spec.name.endswith((".scale", _BIAS_VL)):
            continue
        found[spec.name] = Kind(_form(spec), spec.shape, (spec.name.removesuffix(".weight"),))
    for prefix, experts in _blocks(arch):
        found |= _stacks(arch, prefix, experts)
    return found


def _form(spec: TensorSpec) -> str:
    if spec.dtype == "F32":
        return "plain32"
    if spec.dtype == "BF16":
        return "plain16"
    return "rows" if spec.name.endswith(_TABLE) else "fp8"


def _blocks(arch: Arch) -> Iterator[tuple[str, int]]:
    for layer in arch.layers:
        yield f"layers.{layer.index}.", arch.n_routed_experts
    if arch.draft is not None:
        for stage in range(arch.draft.stages):
            yield f"mtp.{stage}.", arch.draft.n_routed_experts


def _stacks(arch: Arch, prefix: str, experts: int) -> dict[str, Kind]:
    d, inner = arch.hidden_size, arch.moe_intermediate_size
    one = f"{prefix}ffn.experts"
    both = tuple(f"{one}.{e}.{w}" for e in range(experts) for w in ("w1", "w3"))
    down = tuple(f"{one}.{e}.w2" for e in range(experts))
    shared = f"{prefix}ffn.shared_experts."
    return {
        f"{one}.w13": Kind("fp4", (experts, 2 * inner, d), both),
        f"{one}.w2": Kind("fp4", (experts, d, inner), down),
        f"{shared}w13": Kind("fp8", (2 * inner, d), (f"{shared}w1", f"{shared}w3")),
        f"{shared}w2": Kind("fp8", (d, inner), (f"{shared}w2",)),
    }


def first_masters(arch: Arch, seed: int) -> dict[str, Tensor]:
    """Masters before training, fp32 on the CPU; the same for the same arguments.

    Projections have unit gain, those that write into the streams a small one; every sub-layer reads
    mostly one stream, writes all of them and leaves them apart.
    """
    generator = torch.Generator().manual_seed(seed)
    return {name: _first(name, kind, arch, generator) for name, kind in kinds(arch).items()}


def _first(name: str, kind: Kind, arch: Arch, generator: torch.Generator) -> Tensor:
    def normal(std: float) -> Tensor:
        return torch.randn(kind.shape, generator=generator) * std

    per_input = 1 / math.sqrt(kind.shape[-1])
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return torch.ones(kind.shape)
    if name.endswith(("attn_sink", _BIAS)):
        return torch.zeros(kind.shape)
    if "hc_" in name:
        return _first_hyper(name, kind, arch, normal)
    if name.endswith(("wo_b.weight", "w2", "engram.wkv.weight", "confidence_head.proj.weight")):
        return normal(0.3 * per_input)
    if name.endswith("markov_head.head.weight"):
        return normal(0.1 * per_input)
    if name.endswith("embed.weight"):
        return normal(0.5)
    return normal(0.5 * per_input if name == "head.weight" else per_input)


def _first_hyper(name: str, kind: Kind, arch: Arch, normal: object) -> Tensor:
    m = arch.hc_mult
    if name.endswith("_scale"):
        return torch.full(kind.shape, 0.1)
    if name.endswith("_fn"):
        assert callable(normal)
        made = normal(1 / math.sqrt(kind.shape[-1]))
        assert isinstance(made, Tensor)
        return made
    pieces = name.split(".")
    turn = 2 * int(pieces[1]) + ("hc_ffn" in name)
    pre = torch.full((m,), -2.0)
    pre[turn % m] = 1.0
    comb = torch.zeros(m, m)
    comb.fill_diagonal_(4.0)
    return torch.cat((pre, torch.zeros(m), comb.flatten()))


def working(
    masters: Weights, arch: Arch, dtype: torch.dtype, *, quantise: bool
) -> dict[str, Tensor]:
    """Leaf tensors that the network reads, as the engine decodes them.

    Args:
        masters: fp32.
        arch: whose masters.
        dtype: of everything that is not stored as F32.
        quantise: round to the stored form (exact in bf16), else only to `dtype`.
    """
    made: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, kind in kinds(arch).items():
            value = masters[name].detach()
            if quantise:
                value = rounded(value, kind.form)
            value = value.clone() if kind.form == "plain32" else value.to(dtype, copy=True)
            made[name] = value.requires_grad_(not name.endswith(_BIAS))
    return made


def rounded(master: Tensor, form: str) -> Tensor:
    """A master as its stored form decodes, fp32."""
    if form == "fp8":
        return fp8_blocks(master)
    if form == "fp4":
        return fp4_weight(master)
    if form == "rows":
        return fp8_rows(master)
    return master if form == "plain32" else master.to(torch.bfloat16).to(torch.float32)


def stored(masters: Weights, arch: Arch) -> dict[str, Tensor]:
    """Checkpoint tensors by name, on the CPU, in the form that `TensorSource` describes."""
    found: dict[str, Tensor] = {}
    for name, kind in kinds(arch).items():
        value = masters[name].detach().float().cpu()
        if kind.form == "plain32":
            found[name] = value
            if name.endswith(_BIAS):
                found[name + "_vl"] = value.clone()
        elif kind.form == "plain16":
            found[name] = value.to(torch.bfloat16)
        elif kind.form == "rows":
            pair = quantise_fp8(value)
            found[name], found[f"{kind.parts[0]}.scale"] = pair.codes, pair.scale
        else:
            # Stacked matrices are runs of rows, all of one height.
            flat = value.flatten(0, -2)
            for part, rows in zip(kind.parts, flat.chunk(len(kind.parts)), strict=True):
                codes, scale = _encode(rows, kind.form)
                found[f"{part}.weight"], found[f"{part}.scale"] = codes, scale
    return found


def restored(source: TensorSource, arch: Arch) -> dict[str, Tensor]:
    """Masters whose stored form is what `source` holds, fp32 on the CPU.

    Args:
        source: a complete checkpoint of `arch`.
        arch: the architecture.
    """
    found: dict[str, Tensor] = {}
    for name, kind in kinds(arch).items():
        if kind.form in ("plain32", "plain16"):
            found[name] = read(source, name).to(torch.float32)
            continue
        rows = [
            _decode(kind.form, read(source, f"{part}.weight"), read(source, f"{part}.scale"))
            for part in kind.parts
        ]
        found[name] = torch.cat(rows).view(kind.shape)
    return found


def _decode(form: str, codes: Tensor, scale: Tensor) -> Tensor:
    if form == "rows":
        return dequantise_fp8(Quantised(codes, scale))
    if form == "fp4":
        return dequantise_fp4_weight(Fp4Weight(codes, scale))
    return dequantise_fp8_weight(Fp8Weight(codes, scale))


def _encode(rows: Tensor, form: str) -> tuple[Tensor, Tensor]:
    if form == "fp4":
        scale = fp4_weight_scale(rows)
        scaled = rows.unflatten(-1, (-1, 32)) / scale.unsqueeze(-1)
        return pack_e2m1(encode_e2m1(scaled).flatten(-2)), _exponent(scale)
    scale = fp8_block_scale(rows)
    wide = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
    return encode_e4m3(rows / wide), _exponent(scale)


def _exponent(scale: Tensor) -> Tensor:
    """E8M0 bytes of normal powers of two."""
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8)
