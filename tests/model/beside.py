"""A network whose every operation runs twice on the same inputs: an implementation, its reference.

What goes on is the reference's, so each operation is judged on what it meets in a network and never
on what an earlier one changed. Knows no tolerance.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Arch, Layer, Record, Records
from deepinfer.model.block import Flow
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_map import EngramMap
from deepinfer.model.network import Network, Pass
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import OPS, Operations
from deepinfer.model.weights import WeightLoader
from deepinfer.ops.batch import PageViews
from deepinfer.ops.formats import Quantised, decode_parts, decode_record, dequantise_fp8
from deepinfer.ops.registry import Bound

WRITES: Mapping[str, tuple[str, ...]] = {"compress": ("pairs", "pages"), "write_records": ("ring",)}
UNSORTED = ("topk_idx", "blocks")  # choices whose order means nothing


class Distance(NamedTuple):
    """How far a result is from the reference's.

    Attributes:
        rms: of the difference, over the rms of the reference; of choices the share of rows that
            differ.
        changed: share of the numbers that are not equal.
        worst: largest difference over the rms of the reference.
        beyond: share of bf16 numbers that are more than one unit in the last place away, of those
            that are no smaller than a sixteenth of the rms of their row (a sum that cancels has the
            error of what it is made of); and of FP8 codes that are more than one step away while
            the scale is the same.
    """

    rms: float
    changed: float
    worst: float
    beyond: float


@dataclass
class Findings:
    """Distances of every call: (operation, part of its result) -> one a call, with its layer."""

    layer: int = -1
    found: dict[tuple[str, str], list[tuple[int, Tensor]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def note(self, op: str, part: str, distance: Tensor) -> None:
        """Keep a distance [4] float64; it stays on its device, as reading it would wait."""
        self.found[op, part].append((self.layer, distance))

    def each(self) -> Iterator[tuple[str, str, int, Distance]]:
        """Operation, part, layer and distance of every call."""
        for (op, part), calls in self.found.items():
            for layer, distance in calls:
                yield op, part, layer, Distance(*distance.tolist())

    def largest(self) -> dict[tuple[str, str], Distance]:
        """The largest of each number over all calls; NaN counts as larger than any."""
        return {key: Distance(*self._all(key).amax(0).tolist()) for key in self.found}

    def mean(self) -> dict[tuple[str, str], Distance]:
        """The mean of each number over all calls."""
        return {key: Distance(*self._all(key).mean(0).tolist()) for key in self.found}

    def _all(self, key: tuple[str, str]) -> Tensor:
        return torch.stack([distance for _, distance in self.found[key]])


class Both(NamedTuple):
    """Weights as an implementation wants them, and as the reference does."""

    own: Any
    plain: Any


class Beside:
    """Stands for a bound operation: runs it and its reference, and gives the reference's result.

    Args:
        bound: what is judged.
        findings: where distances go.
        records: formats of what is stored.
    """

    def __init__(self, bound: Bound, findings: Findings, records: Records):
        self.op = bound.op
        self.bound = bound
        self.implementation = bound.implementation
        self.findings = findings
        self.records = records
        self.reference = OPS[bound.op].reference
        self._parameters = inspect.signature(self.reference)

    def pack(self, weights: Any) -> Both:
        """Weights for both; a packing may take the place of what it is given, so it gets a copy."""
        return Both(self.bound.pack(_copied(weights)), weights)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The reference's result."""
        given = self._parameters.bind(*args, **kwargs).arguments
        plain = {k: v.plain if isinstance(v, Both) else v for k, v in given.items()}
        own = {k: v.own if isinstance(v, Both) else v for k, v in given.items()}
        if self.op in WRITES:
            self._writing(plain, own)
            return None
        wanted = self.reference(**plain)
        record = given.get("record")
        found = dict(_parts(self.op, self.bound(**own), record))
        for (part, one), other in zip(_parts(self.op, wanted, record), found.values(), strict=True):
            self.compare(part, other, one)
        return wanted

    def compare(self, part: str, own: Any, wanted: Any) -> None:
        """Note how far a part of a result is from the reference's."""
        if isinstance(wanted, Quantised):
            values = distance(dequantise_fp8(own), dequantise_fp8(wanted))
            values[3] = _beyond_a_step(own, wanted)
            self.findings.note(self.op, part, values)
            return
        assert own.shape == wanted.shape, f"{self.op} {part}: {own.shape} for {wanted.shape}"
        assert own.dtype == wanted.dtype, f"{self.op} {part}: {own.dtype} for {wanted.dtype}"
        self.findings.note(self.op, part, distance(own, wanted))

    def _writing(self, plain: dict[str, Any], own: dict[str, Any]) -> None:
        """Operations that change state: each starts from the same bytes; the reference's stay."""
        views = _written(self.op, plain)
        pools = {t.untyped_storage().data_ptr(): _bytes_under(t) for t in views.values()}
        before = {name: view[1:].clone() for name, view in views.items()}
        saved = [pool.clone() for pool in pools.values()]
        self.bound(**own)
        after = {name: view[1:].clone() for name, view in views.items()}
        for pool, bytes_before in zip(pools.values(), saved, strict=True):
            pool.copy_(bytes_before)
        self.reference(**plain)
        wanted = {name: view[1:] for name, view in views.items()}
        for part, names, decode in _stored(self.op, self.records):
            if names[0] in views:
                rows = torch.stack(
                    [_changed(before[n], state[n]) for n in names for state in (after, wanted)]
                ).any(0)
                own_values, values = (
                    decode(*(state[n][rows] for n in names)) for state in (after, wanted)
                )
                self.findings.note(self.op, part, distance(own_values, values))


def distance(own: Tensor, wanted: Tensor) -> Tensor:
    """`Distance` as a tensor [4] float64 on the device; zeros for empty tensors."""
    zero = torch.zeros((), dtype=torch.float64, device=wanted.device)
    if not wanted.numel():
        return zero.expand(4)
    changed = (own != wanted).double()
    if not wanted.is_floating_point():
        rows = changed.flatten(1).amax(-1) if changed.dim() > 1 else changed
        return torch.stack((rows.mean(), changed.mean(), rows.amax(), zero))
    a, b = own.double(), wanted.double()
    size = b.square().mean().sqrt().clamp(min=1e-300)
    gap = (a - b).abs()
    beyond = zero
    if wanted.dtype == torch.bfloat16:
        unit = torch.exp2(torch.frexp(torch.maximum(a.abs(), b.abs()))[1].double() - 8)
        judged = b.abs() >= b.square().mean(-1, keepdim=True).sqrt() / 16
        beyond = ((gap > unit) & judged).double().sum() / judged.double().sum().clamp(min=1)
    rms = gap.square().mean().sqrt() / size
    return torch.stack((rms, changed.mean(), gap.amax() / size, beyond))


def _beyond_a_step(own: Quantised, wanted: Quantised) -> Tensor:
    """Share of codes more than one step away where the group's scale is the same."""
    places = [_place(pair.codes) for pair in (own, wanted)]
    same = (own.scale == wanted.scale).repeat_interleave(32, dim=-1)
    return (same & ((places[0] - places[1]).abs() > 1)).double().mean()


def _place(codes: Tensor) -> Tensor:
    """Place of E4M3 codes in ascending order; both zeros have one."""
    size = (codes & 127).int()
    return torch.where(codes >= 128, -size, size)


def _parts(op: str, value: Any, record: Record | None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and FP8 pairs of a result by name; stored records decoded, choices in one order."""
    if value is None or (isinstance(value, Tensor) and not value.numel()):
        return
    if isinstance(value, Quantised):
        yield name or "quantised", value
    elif isinstance(value, Tensor):
        if name == "records":
            assert record is not None, f"{op} is told the format of its records"
            value = decode_record(value, record)
        yield name or "result", value.sort(-1).values if name in UNSORTED else value
    elif hasattr(value, "topk_idx"):
        ids, order = value.topk_idx.sort(-1)
        yield "topk_idx", ids
        yield "topk_weights", value.topk_weights.gather(-1, order)
    else:
        for key, part in value._asdict().items():
            yield from _parts(op, part, record, key)


def _written(op: str, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Views of the state that an operation may change, by name."""
    views: dict[str, Tensor] = {}
    for name in WRITES[op]:
        value = given[name]
        if isinstance(value, PageViews):
            views |= value._asdict()
        elif value is not None:
            views[name] = value
    return views


def _stored(op: str, records: Records) -> list[tuple[str, tuple[str, ...], Callable[..., Tensor]]]:
    """What is stored: its name, the views that hold it, and how to read rows of them."""
    if op == "write_records":
        return [("ring", ("ring",), lambda ring: decode_record(ring, records.window))]
    key = records.index_key.format
    return [
        ("latents", ("latents",), lambda rows: decode_record(rows, records.latent)),
        ("keys", ("key_codes", "key_scales"), lambda c, s: decode_parts(c, s, key)),
        ("pairs", ("pairs",), lambda rows: rows),
    ]


def _bytes_under(view: Tensor) -> Tensor:
    """All bytes of the memory that a view is part of."""
    return torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())


def _changed(before: Tensor, after: Tensor) -> Tensor:
    """Which rows [slots or pages, rows] have other bytes; NaN are bytes as well."""
    one, other = (t.contiguous().view(torch.uint8).flatten(2) for t in (before, after))
    return (one != other).any(-1)


def _copied(weights: Any) -> Any:
    if isinstance(weights, Tensor):
        return weights.clone()
    return None if weights is None else type(weights)(*(_copied(part) for part in weights))


class Watched(Network):
    """A network that tells its findings which layer runs."""

    findings: Findings

    def layer(self, layer: Layer, flow: Flow, step: Pass) -> Flow:
        """One backbone layer."""
        self.findings.layer = layer.index
        result = super().layer(layer, flow, step)
        self.findings.layer = -1
        return result


def beside(
    arch: Arch,
    device: torch.device,
    device_arch: str,
    hashes: EngramMap | None,
    wishes: Mapping[str, str] | None = None,
    seed: int = 3,
) -> Watched:
    """A network with random weights in the release's formats, every operation beside its reference.

    Args:
        arch: the architecture.
        device: where it computes.
        device_arch: what operations are bound for.
        hashes: of the Engram layers.
        wishes: operation name -> implementation name; None = the device's choice.
        seed: of the weights.
    """
    findings = Findings()
    bound = Operations.bind(arch, CHECKPOINT, device_arch, wishes)
    records = CHECKPOINT.records(arch)
    pairs: dict[str, Any] = {
        f.name: Beside(getattr(bound, f.name), findings, records) for f in fields(bound)
    }
    ops = Operations(**pairs)
    weights = WeightLoader(DummySource(arch, seed), arch, ops, CHECKPOINT, device).load()
    net = Watched(arch, CHECKPOINT, ops, weights, hashes)
    net.findings = findings
    return net
