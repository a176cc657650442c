"""The architecture of DeepSeek-V4.1 as plain numbers, read from `config.json`. Torch-free."""

from deepinfer.arch.layout import (
    PAGE_TOKENS,
    OwnerSection,
    PageLayout,
    Record,
    RecordFormat,
    Records,
    SlotLayout,
)
from deepinfer.arch.parse import load_arch, parse_arch
from deepinfer.arch.spec import Arch, Draft, Engram, Layer, RopeScaling, Vision
from deepinfer.arch.tensors import Dtype, TensorSpec, tensor_specs

__all__ = [
    "PAGE_TOKENS",
    "Arch",
    "Draft",
    "Dtype",
    "Engram",
    "Layer",
    "OwnerSection",
    "PageLayout",
    "Record",
    "RecordFormat",
    "Records",
    "RopeScaling",
    "SlotLayout",
    "TensorSpec",
    "Vision",
    "load_arch",
    "parse_arch",
    "tensor_specs",
]
