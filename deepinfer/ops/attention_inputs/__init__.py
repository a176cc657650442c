"""Queries and window keys; see reference.py for its meaning."""

from deepinfer.ops.attention_inputs.reference import AttentionInputs, window_records
from deepinfer.ops.attention_inputs.reference import attention_inputs as _reference
from deepinfer.ops.registry import Op

attention_inputs = Op(_reference)

__all__ = ["AttentionInputs", "attention_inputs", "window_records"]
