"""Masters of one form and shape in one tensor, so that a step costs few operations.

It does not know how an optimiser changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.nano.train.masters import Kind, first_masters, kinds, rounded

# What is no matrix for an orthogonal step: tables, ends of the network, and numbers that scale.
_NOT_MATRICES = (
    "embed.weight",
    "head.weight",
    "norm.weight",
    "q_weight",
    "k_weight",
    "attn_sink",
    ".gate.weight",
    "weights_proj.weight",
    "confidence_head.proj.weight",
)
BIAS = ".gate.bias"


@dataclass(frozen=True)
class Group:
    """Masters that are stored, stepped and rounded together.

    names: in the order of the first axis of `values` [n, *shape] fp32. form: of `masters.Kind`.
    matrices: [rows, columns] of the matrices that an orthogonal step turns, None for other steps.
    rate: relative size of such other steps.
    """

    names: tuple[str, ...]
    form: str
    values: Tensor
    matrices: tuple[int, int] | None
    rate: float

    def split(self, stacked: Tensor) -> Tensor:
        """[n, *shape] -> [all matrices, rows, columns], a view."""
        assert self.matrices is not None
        return stacked.reshape(-1, *self.matrices)


class Bank:
    """All masters of an architecture.

    Args:
        arch: the architecture.
        seed: of the first values.
        device: where they live.
    """

    def __init__(self, arch: Arch, seed: int, device: torch.device):
        self.arch = arch
        first = first_masters(arch, seed)
        found: dict[tuple[object, ...], list[str]] = {}
        for name, kind in kinds(arch).items():
            rule = (_matrices(name, kind, arch), _rate(name), name.endswith(BIAS))
            found.setdefault((kind.form, kind.shape, *rule), []).append(name)
        self.groups = [
            Group(
                tuple(names),
                str(key[0]),
                torch.stack([first[name] for name in names]).to(device),
                _matrices(names[0], kinds(arch)[names[0]], arch),
                _rate(names[0]),
            )
            for key, names in found.items()
        ]

    def masters(self) -> dict[str, Tensor]:
        """Views by name."""
        return {n: group.values[i] for group in self.groups for i, n in enumerate(group.names)}

    def working(self, dtype: torch.dtype, *, quantise: bool) -> dict[str, Tensor]:
        """As `masters.working`, in few operations."""
        made: dict[str, Tensor] = {}
        with torch.no_grad():
            for group in self.groups:
                values = group.values
                if quantise:
                    values = rounded_all(values, group.form)
                plain = group.form == "plain32"
                values = values.clone() if plain else values.to(dtype, copy=True)
                made.update(zip(group.names, values.unbind(0), strict=True))
        return {n: v.detach().requires_grad_(not n.endswith(BIAS)) for n, v in made.items()}

    def take(self, masters: Mapping[str, Tensor]) -> None:
        """Replace all values by these masters."""
        for group in self.groups:
            for i, name in enumerate(group.names):
                group.values[i].copy_(masters[name])

    def state(self) -> dict[str, Tensor]:
        """For `load`: the values of every group under its first name."""
        return {group.names[0]: group.values for group in self.groups}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take saved values."""
        for group in self.groups:
            group.values.copy_(state[group.names[0]])


def rounded_all(values: Tensor, form: str) -> Tensor:
    """`masters.rounded` of stacked masters [n, *shape]."""
    if form != "fp8":
        return rounded(values, form)
    return rounded(values.flatten(0, 1), form).view(values.shape)


def gradients(group: Group, weights: Mapping[str, Tensor]) -> Tensor:
    """fp32 [n, *shape] of the working tensors; zero where none arrived or where it is no number."""
    found: Iterable[Tensor] = (
        torch.zeros_like(weights[n]) if weights[n].grad is None else _grad(weights[n])
        for n in group.names
    )
    return torch.nan_to_num(torch.stack(tuple(found)).to(torch.float32), 0.0, 0.0, 0.0)


def _grad(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def _matrices(name: str, kind: Kind, arch: Arch) -> tuple[int, int] | None:
    if len(kind.shape) < 2 or name.endswith(_NOT_MATRICES) or "hc_" in name:
        return None
    rows, columns = kind.shape[-2:]
    if name.endswith("w13"):
        rows //= 2  # gate and up
    if name.endswith("wo_a.weight"):
        rows //= arch.o_groups
    return rows, columns


def _rate(name: str) -> float:
    """Relative step of what is no matrix, by how much such numbers have to move."""
    if name.endswith("engram.embed.weight"):
        return 2.0
    if name.endswith("_fn"):
        return 0.15  # sums over all streams
    if name.endswith(("weights_proj.weight", ".gate.weight", "head.proj.weight", "head.weight")):
        return 0.5
    return 1.0
