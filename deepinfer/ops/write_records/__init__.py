"""Window records into their rings; see reference.py for its meaning."""

from deepinfer.ops.registry import Op, lazy
from deepinfer.ops.write_records.reference import write_records as _reference

write_records = Op(_reference)
write_records.add(
    lazy(
        write_records,
        "triton",
        needs="triton",
        run="deepinfer.ops.write_records.triton:write_records",
        refuses="deepinfer.ops.write_records.triton:refuses",
        pack="deepinfer.ops.write_records.triton:pack",
        order_class="triton",
    )
)

__all__ = ["write_records"]
