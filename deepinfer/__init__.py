"""An inference engine for DeepSeek-V4.1-Flash that one person can read."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.api import (
        LLM,
        AsyncEngine,
        CompletionOutput,
        RequestOutput,
        SamplingParams,
        StructuredOutputsParams,
    )

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> Any:
    """Import the engine when it is first asked for: planning rooms load without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'deepinfer' has no attribute {name!r}")
    from deepinfer import api

    return getattr(api, name)
