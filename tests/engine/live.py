"""Counts the bytes of tensors that live at a time; works for tensors without memory, too.

Knows nothing of what computes them.
"""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Within it: `peak`, the most bytes of storages made and not yet given back."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_storage(leaf)._cdata for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        for leaf in tree_leaves(result):
            if _is_tensor(leaf) and _storage(leaf)._cdata not in (*given, *self._sizes):
                self._made(_storage(leaf))
        return result

    def _made(self, storage: torch.UntypedStorage) -> None:
        self._sizes[storage._cdata] = storage.nbytes()
        self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, key: int) -> None:
        self._now -= self._sizes.pop(key)


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
