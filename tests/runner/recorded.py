"""Graphs without an accelerator: aten operations recorded once, run again on the same memory.

What a CUDA graph would bake in is baked in here: host numbers, sizes, addresses. An operation that
a capture could not hold (the host would have to look at a value) raises while it is recorded.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The host reads a value, or a size depends on values.
WAITING = {
    "_local_scalar_dense", "item", "nonzero", "nonzero_static", "equal", "masked_select",
    "is_nonzero", "unique", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount",
    "lift_fresh", "lift", "allclose", "argwhere", "repeat_interleave",
}  # fmt: skip


class HiddenSync(AssertionError):
    """A decoding step did what would make the host wait for the device."""


def tensors(values: object) -> Iterator[Tensor]:
    yield from (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


class NoWaiting(TorchDispatchMode):
    """Runs operations, but not those that would make the host wait for a device; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self._numbers: dict[int, Tensor] = {}  # made of host numbers, kept so that ids stay theirs

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._check(func, args)
        self.operations += 1
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("lift", "lift_fresh"):
            self._numbers[result.data_ptr()] = result
        return result

    def _check(self, func: Any, args: tuple[Any, ...]) -> None:
        """Raise `HiddenSync` for an operation whose host part depends on device values."""
        name = func.overloadpacket.__name__
        by_host_number = (name == "repeat_interleave" and func._overloadname == "self_int") or (
            name in ("lift", "lift_fresh") and args[0].dim() == 0  # filled in on the device
        )
        if name in WAITING and not by_host_number:
            raise HiddenSync(f"{func}: the host would wait for the device")
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            for index in args[1]:
                if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                    raise HiddenSync(f"{func}: a mask as index has as many entries as ones")
            if len(args) > 2 and args[2].data_ptr() in self._numbers:
                raise HiddenSync(f"{func}: a number assigned by index is uploaded")


class _Recorder(NoWaiting):
    """Notes operations with their actual tensors; memory that was there before is kept safe."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.born: dict[int, torch.UntypedStorage] = {}
        self.saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors(value):
                    self._save(tensor.untyped_storage())
        given = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs))}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in tensors(result):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in given:
                self.born[storage.data_ptr()] = storage
        self.steps.append((func, args, kwargs, result))
        return result

    def _save(self, storage: torch.UntypedStorage) -> None:
        at = storage.data_ptr()
        if at not in self.born and at not in self.saved:
            self.saved[at] = (storage, storage.clone())


class RecordedGraph:
    """What a recorder noted, to be run again; views are left out, their memory is others'."""

    def __init__(self, steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]):
        self._steps = []
        for func, args, kwargs, result in steps:
            given = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs))}
            changes = func._schema.is_mutable
            if changes or any(t.untyped_storage().data_ptr() not in given for t in tensors(result)):
                self._steps.append((func, args, kwargs, () if changes else tuple(tensors(result))))

    @torch.inference_mode()
    def replay(self) -> None:
        for func, args, kwargs, filled in self._steps:
            again = func(*args, **kwargs)
            for mine, new in zip(filled, tensors(again) if filled else (), strict=True):
                mine.copy_(new)


class RecordedGraphs:
    """`Graphs` of a CPU, for tests.

    Like a capture, recording changes nothing that was there before. Temporary memory is filled with
    ones afterwards (NaN, or -1), so that a replay which relied on it would be found out.
    """

    def __init__(self) -> None:
        self.operations = 0

    def capture(self, run: Callable[[], Any]) -> tuple[RecordedGraph, Any]:
        recorder = _Recorder()
        with recorder:
            outputs = run()
        for storage, before in recorder.saved.values():
            storage.copy_(before)
        for storage in recorder.born.values():
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)
        self.operations += len(recorder.steps)
        return RecordedGraph(recorder.steps), outputs
