"""What `from deepinfer import ...` gives: the engine with the embedded model among its names.

Knows nothing of the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepinfer.config import cache_dir
from deepinfer.engine.async_engine import AsyncEngine
from deepinfer.engine.llm import LLM as _LLM
from deepinfer.nano.build import builtin_models
from deepinfer.request import (
    CompletionOutput,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]


class LLM(_LLM):
    """`engine.llm.LLM`; the name "nano" means the embedded model."""

    def __init__(self, model: str | Path, **options: Any):
        super().__init__(model, builtin=builtin_models(cache_dir), **options)
