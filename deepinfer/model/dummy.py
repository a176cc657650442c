"""Weights made up from a seed, for any architecture: `load_format="dummy"`.

A value depends on (seed, tensor name, element index) alone and comes from integer arithmetic, so
it is the same on every device, for every chunk size and for every order of reading. Magnitudes
keep the network numerically sane; their statistics follow common initialisation rules. It does
not know how a tensor is used beyond its name.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch import Arch, TensorSpec, tensor_specs
from deepinfer.model.source import FileRange, check_out, has_part

CHUNK_WORDS = 1 << 20  # random 64-bit words made at once: 8 MiB and as much again in passing


@dataclass(frozen=True)
class _Rule:
    """Mean, and standard deviation times sqrt(inner size) if `per_input`, else as it is."""

    mean: float
    std: float
    per_input: bool = False


# First suffix that matches wins. What writes into the residual streams is damped.
_RULES: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (("engram.embed.weight",), _Rule(0.0, 0.7)),
    (("markov_head.embed.weight", "embed.weight"), _Rule(0.0, 1.0)),
    (("markov_head.head.weight", "confidence_head.proj.weight"), _Rule(0.0, 1.5, True)),
    (("head.weight",), _Rule(0.0, 3.0, True)),  # logits of standard deviation 3
    (("q_weight", "k_weight"), _Rule(1.0, 0.3)),
    (("norm.weight", "norm1.weight", "norm2.weight"), _Rule(1.0, 0.2)),
    (("attn_sink",), _Rule(0.0, 1.0)),
    (("hc_attn_base", "hc_ffn_base"), _Rule(0.0, 0.6)),
    (("hc_attn_scale", "hc_ffn_scale"), _Rule(0.8, 0.1)),
    (("gate.bias",), _Rule(0.0, 0.15)),
    (("gate.bias_vl",), _Rule(0.0, 0.4)),
    ((".bias",), _Rule(0.0, 0.02)),
    (("gate.weight",), _Rule(0.0, 2.5, True)),
    (("wo_b.weight", "w2.weight", "engram.wkv.weight"), _Rule(0.0, 0.25, True)),
    (("image_start", "image_end", "image_newline"), _Rule(0.0, 1.0)),
)
_DEFAULT = _Rule(0.0, 1.0, True)

_E4M3_RMS = 13.6  # of the codes that `_e4m3` makes: +-[2, 30], four octaves equally often
_E2M1_RMS = 2.93  # of the sixteen FP4 codes equally often: sqrt(68.5 / 8)
_JITTER_RMS = 1.25  # of 2^j for the exponent offsets j = -1, 0, 0, 1 of `_scale_bytes`
_WORD_STD = 37837.2  # of the sum of four uniform 16-bit integers: 2 * 65536 / sqrt(12)


class DummySource:
    """A `TensorSource` of seeded random weights, made in place on the destination's device.

    Args:
        arch: any architecture; all its parts are offered.
        seed: any integer.
    """

    def __init__(self, arch: Arch, seed: int = 0):
        self.specs: dict[str, TensorSpec] = {spec.name: spec for spec in tensor_specs(arch)}
        self.seed = seed

    @property
    def has_draft(self) -> bool:
        """Whether the architecture has draft stages."""
        return has_part(self, "draft")

    def file_range(self, name: str) -> FileRange | None:
        """Never in a file."""
        return None

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill `out` with the values of one tensor.

        Args:
            name: a key of `specs`.
            out: stored shape, dtype of `STORED_DTYPE`, any strides, any device.
        """
        spec = self.specs[name]
        check_out(spec, out)
        row = spec.elements // spec.shape[0]
        per_word = 8 if out.dtype == torch.uint8 else 1
        rows = max(1, CHUNK_WORDS * per_word // row)
        for start in range(0, spec.shape[0], rows):
            part = out[start : start + rows]
            part.copy_(self._values(spec, start * row, part.numel(), out.device).view(part.shape))

    def _values(self, spec: TensorSpec, first: int, count: int, device: torch.device) -> Tensor:
        """Elements [first, first + count) in row-major order."""
        key = _key(self.seed, spec.name)
        if spec.dtype in ("BF16", "F32"):
            rule = _rule(spec.name)
            std = rule.std / math.sqrt(spec.shape[-1]) if rule.per_input else rule.std
            values = _normal(_words(key, first, count, device))
            return values.mul_(std / _WORD_STD).add_(rule.mean)
        raw = _bytes(key, first, count, device)
        if spec.dtype == "F8_E4M3":
            return _e4m3(raw)
        if spec.dtype == "F8_E8M0":
            return _scale_bytes(raw, self._exponent(spec.name))
        return raw  # I8: any byte is two FP4 codes

    def _exponent(self, scale_name: str) -> int:
        """Typical scale byte that gives the weight beside it the deviation of its rule."""
        weight = self.specs[scale_name.removesuffix("scale") + "weight"]
        packed = weight.dtype == "I8"
        inner = weight.shape[-1] * (2 if packed else 1)
        rule = _rule(weight.name)
        std = rule.std / math.sqrt(inner) if rule.per_input else rule.std
        return 127 + round(math.log2(std / (_JITTER_RMS * (_E2M1_RMS if packed else _E4M3_RMS))))


def _rule(name: str) -> _Rule:
    return next((rule for suffixes, rule in _RULES if name.endswith(suffixes)), _DEFAULT)


def _key(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit constant."""
    return word - (1 << 64) if word >> 63 else word


def _words(key: int, first: int, count: int, device: torch.device) -> Tensor:
    """Random int64 words number first, first + 1, ...: splitmix64 (Steele, Lea and Flood, 2014).

    Products wrap modulo 2^64 on every device; `>>` keeps the sign, hence the masks.
    """
    x = torch.arange(first, first + count, dtype=torch.int64, device=device)
    x = x.mul_(_signed(0x9E3779B97F4A7C15)).add_(key)
    x ^= (x >> 30).bitwise_and_((1 << 34) - 1)
    x.mul_(_signed(0xBF58476D1CE4E5B9))
    x ^= (x >> 27).bitwise_and_((1 << 37) - 1)
    x.mul_(_signed(0x94D049BB133111EB))
    x ^= (x >> 31).bitwise_and_((1 << 33) - 1)
    return x


def _bytes(key: int, first: int, count: int, device: torch.device) -> Tensor:
    """Random uint8 [count]; byte i is byte i mod 8 of word i div 8."""
    begin = first // 8
    words = _words(key, begin, -(-(first + count) // 8) - begin, device)
    skip = first - 8 * begin
    return words.view(torch.uint8)[skip : skip + count]


def _normal(words: Tensor) -> Tensor:
    """Nearly normal fp32 [count] with mean 0 and deviation `_WORD_STD`, bounded by 3.47 of it.

    The sum of a word's four 16-bit quarters is an integer below 2^18, hence exact in fp32.
    """
    quarters = words.view(torch.int16).view(-1, 4)
    return quarters.sum(dim=1, dtype=torch.int32).add_(2).float()  # each quarter's mean is -1/2


def _e4m3(raw: Tensor) -> Tensor:
    """Keep sign, mantissa and two exponent bits: magnitudes 2 to 30, neither zero nor NaN."""
    return (raw & 0x9F).bitwise_or_(0x40)


def _scale_bytes(raw: Tensor, exponent: int) -> Tensor:
    """`exponent` - 1, + 0, + 0 or + 1, so that blocks differ as trained ones do."""
    return (raw & 1).add_((raw >> 1) & 1).add_(exponent - 1)
