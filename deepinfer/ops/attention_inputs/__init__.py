"""Queries and window keys; see reference.py for its meaning."""

from deepinfer.ops.attention_inputs import cpu
from deepinfer.ops.attention_inputs.reference import AttentionInputs, window_records
from deepinfer.ops.attention_inputs.reference import attention_inputs as _reference
from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

attention_inputs = Op(_reference)
attention_inputs.add(
    Implementation(
        "cpu",
        cpu.attention_inputs,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
attention_inputs.add(
    lazy(
        attention_inputs,
        "triton",
        needs="triton",
        run="deepinfer.ops.attention_inputs.triton:attention_inputs",
        refuses="deepinfer.ops.attention_inputs.triton:refuses",
        pack="deepinfer.ops.attention_inputs.triton:pack",
        order_class="triton",
    )
)

__all__ = ["AttentionInputs", "attention_inputs", "window_records"]
