"""Reads golden folders and judges values by the limits that their manifests state.

The rules are those of the golden data's README, section 7. Knows nothing of what is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from deepinfer.arch import RecordFormat
from deepinfer.ops.formats import decode_parts

NOT_AN_OUTPUT = frozenset({"input", "informative"})
_MANTISSA_BITS = {torch.bfloat16: 7, torch.float32: 23, torch.float16: 10}
_LEAST_EXPONENT = {torch.bfloat16: -126, torch.float32: -126, torch.float16: -14}
_AT_MOST = frozenset({"abs", "rel_rms", "ulp", "rel_rms_max", "mismatch_fraction_max", "exact"})
_BYTES_A_SCALE: dict[int, RecordFormat] = {
    32: "fp8_ue8m0_32",
    8: "fp4_e4m3_16",
    16: "fp4_ue8m0_32",
}

Part = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Report:
    """One comparison: `measured` against `limit` (None: never judged), and the worst place."""

    name: str
    condition: str
    rule: str
    measured: float
    limit: float | None
    compared: int
    total: int
    where: str

    @property
    def passed(self) -> bool:
        if self.limit is None:
            return True
        if self.rule in _AT_MOST:
            return self.measured <= self.limit
        return self.measured >= self.limit

    def __str__(self) -> str:
        sign = "<=" if self.rule in _AT_MOST else ">="
        verdict = "" if self.passed else " FAILED"
        return (
            f"{self.name} [{self.condition}] {self.rule} {self.measured:.6g} {sign} {self.limit}"
            f"{verdict}; {self.compared} of {self.total} elements compared{self.where}"
        )


class Golden:
    """One golden folder: its tensors, its manifest, and which tensors have been checked."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text("utf-8"))
        version = self.manifest["tolerance_format"]
        if version != 1:
            raise ValueError(f"{folder}: tolerance_format {version}, this reader knows 1")
        self._entries = {(_stem(t["file"]), t["name"]): t for t in self.manifest["tensors"]}
        self._read: dict[tuple[str, str], Tensor] = {}
        self.checked: set[tuple[str, str]] = set()

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._entries

    def names(self, file: str) -> list[str]:
        """Names of the tensors of one file, in manifest order."""
        return [name for at, name in self._entries if at == file]

    def outputs(self) -> list[tuple[str, str]]:
        """(file, name) of every tensor that some condition judges."""
        return [
            key
            for key, entry in self._entries.items()
            if any(t["applies_when"] not in NOT_AN_OUTPUT for t in _tolerances(entry))
        ]

    def conditions(self, file: str, name: str) -> set[str]:
        return {t["applies_when"] for t in self._tolerances(file, name)}

    def tensor(self, file: str, name: str) -> Tensor:
        """The stored tensor; its shape and dtype are those the manifest promises."""
        key = (file, name)
        if key not in self._read:
            entry = self._entries[key]
            with safe_open(self.folder / f"{file}.safetensors", framework="pt") as data:
                value = data.get_tensor(name)
            found = (list(value.shape), str(value.dtype).removeprefix("torch."))
            if found != (entry["shape"], entry["dtype"]):
                raise ValueError(f"{file}:{name} is {found}, the manifest says otherwise")
            self._read[key] = value
        return self._read[key]

    def records(self, file: str, stem: str) -> Tensor:
        """Decoded values of a record pair `<stem>.q`, `<stem>.s`, fp32."""
        return _decode(self.tensor(file, f"{stem}.q"), self.tensor(file, f"{stem}.s"))

    def feeds(self, file: str, name: str) -> str | None:
        """Name of the tensor whose tokens the model must be fed with; None: its own."""
        return self._tolerances(file, name)[0].get("feed")

    def check(
        self, file: str, name: str, value: Tensor, condition: str, part: Part | None = None
    ) -> tuple[Report, ...]:
        """Judge `value` by every tolerance of `file`:`name` that applies under `condition`.

        Args:
            file: stem of the file.
            name: of the tensor.
            value: what to judge.
            condition: an `applies_when` of the manifest.
            part: cuts the reference down to what `value` covers; None: all of it.

        Returns:
            One report a tolerance.

        Raises:
            AssertionError: a limit is exceeded, or the shape differs.
            KeyError: no such tensor, or it has no tolerance for `condition`.
        """
        if any(t.get("compare") == "dequantised" for t in self._tolerances(file, name)):
            raise KeyError(f"{file}:{name} is compared decoded: use check_records")
        return self._judge(file, name, value, self.tensor(file, name), condition, part)

    def check_records(
        self, file: str, stem: str, value: Tensor, condition: str, part: Part | None = None
    ) -> tuple[Report, ...]:
        """Judge decoded record values [*, width] by the tolerance of `<stem>.q`."""
        reference = self.records(file, stem)
        reports = self._judge(file, f"{stem}.q", value, reference, condition, part)
        self.checked.add((file, f"{stem}.s"))
        return reports

    def check_by(
        self, rule: dict[str, Any], file: str, name: str, value: Tensor, part: Part | None = None
    ) -> Report:
        """Judge by a rule of the caller's, where no condition of the manifest can be met."""
        reference = self.tensor(file, name)
        report = judge(
            f"{file}:{name}",
            {"applies_when": "caller's rule", **rule},
            value.detach().cpu(),
            reference if part is None else part(reference),
        )
        self.checked.add((file, name))
        assert report.passed, str(report)
        return report

    def _judge(
        self,
        file: str,
        name: str,
        value: Tensor,
        reference: Tensor,
        condition: str,
        part: Part | None,
    ) -> tuple[Report, ...]:
        applying = [
            (number, tolerance)
            for number, tolerance in enumerate(self._tolerances(file, name))
            if tolerance["applies_when"] == condition
        ]
        if not applying:
            raise KeyError(f"{file}:{name} has no tolerance for {condition!r}")
        mask = self._mask(file, self._entries[file, name], reference)
        if part is not None:
            reference, mask = part(reference), None if mask is None else part(mask)
        reports = [
            judge(f"{file}:{name}", t, value.detach().cpu(), reference, None if number else mask)
            for number, t in applying
        ]
        self.checked.add((file, name))
        failed = [str(report) for report in reports if not report.passed]
        assert not failed, "\n".join(failed)
        return tuple(reports)

    def _mask(self, file: str, entry: dict[str, Any], reference: Tensor) -> Tensor | None:
        guard = entry.get("guard")
        if guard is None:
            return None
        kept = self.tensor(file, guard["tensor"]) >= guard["min"]
        axis, shift = guard.get("axis", 0), guard.get("shift", 0)
        if shift:
            kept = torch.cat((torch.ones_like(kept[:shift]), kept))
        kept = kept[tuple(slice(size) for size in reference.shape[axis : axis + kept.dim()])]
        if entry["tolerance"]["applies_when"] == "noquant" and kept.dim() == 1:
            kept = kept.cumprod(0).bool()  # after a token that may differ, all of them may
        behind = reference.dim() - axis - kept.dim()
        return kept.view(*[1] * axis, *kept.shape, *[1] * behind).expand(reference.shape)

    def _tolerances(self, file: str, name: str) -> list[dict[str, Any]]:
        return _tolerances(self._entries[file, name])


def judge(
    name: str,
    tolerance: dict[str, Any],
    value: Tensor,
    reference: Tensor,
    mask: Tensor | None = None,
) -> Report:
    """Compare under one tolerance; `mask` [shape of reference] bool leaves elements out."""
    if tolerance.get("compare") == "set_per_row":
        value, reference = _as_sets(value, reference)
    assert value.shape == reference.shape, (
        f"{name}: shape {tuple(value.shape)}, golden has {tuple(reference.shape)}"
    )
    kept = torch.ones(reference.shape, dtype=torch.bool) if mask is None else mask
    axis = tolerance.get("per_axis")
    if axis is None:
        return _judge_part(name, tolerance, value, reference, kept)
    slices = zip(value.unbind(axis), reference.unbind(axis), kept.unbind(axis), strict=True)
    parts = [
        _judge_part(f"{name}[axis {axis}: {i}]", tolerance, *triple)
        for i, triple in enumerate(slices)
    ]
    failed = [part for part in parts if not part.passed]
    return failed[0] if failed else max(parts, key=lambda part: part.measured)


def _judge_part(
    name: str, tolerance: dict[str, Any], value: Tensor, reference: Tensor, kept: Tensor
) -> Report:
    rule = tolerance.get("metric", tolerance["kind"])
    spacing_of = reference.dtype
    x, ref = _wide(value), _wide(reference)
    gap = torch.where(x == ref, 0.0, (x - ref).abs()).nan_to_num(nan=torch.inf)
    limit = tolerance["value"]
    count = int(kept.sum())
    if rule == "overlap_fraction_min":
        measured = _overlap(value, reference, kept)
    elif count == 0:
        measured = 1.0 if rule == "match_fraction_min" else 0.0
    elif rule == "exact":
        gap = (x != ref).double()
        measured, limit = float(gap[kept].sum()), 0.0
    elif rule == "abs":
        measured = float(gap[kept].max())
    elif rule in ("rel_rms", "rel_rms_max"):
        measured = _relative_rms(gap, ref, kept)
    elif rule == "ulp":
        gap = torch.where(gap <= tolerance.get("floor", 0.0), 0.0, gap / _spacing(ref, spacing_of))
        measured = float(gap[kept].max())
    elif rule == "match_fraction_min":
        measured = float((x == ref)[kept].double().mean())
    elif rule == "mismatch_fraction_max":
        measured = float((x != ref)[kept].double().mean())
    else:
        assert limit is None, f"{name}: unknown rule {rule!r}"
        measured = float(gap[kept].max())
    where = _place(gap.masked_fill(~kept, 0.0), value, reference)
    condition = tolerance["applies_when"]
    return Report(name, condition, rule, measured, limit, count, reference.numel(), where)


def _relative_rms(gap: Tensor, ref: Tensor, kept: Tensor) -> float:
    """RMS of the differences over the standard deviation, both over finite reference values."""
    finite = kept & ref.isfinite()
    if not finite.any():
        return 0.0
    error = gap[finite].square().mean().sqrt()
    if error == 0:
        return 0.0
    return float(error / ref[finite].std(correction=0))


def _overlap(value: Tensor, reference: Tensor, kept: Tensor) -> float:
    """Mean over rows with an id of the share of the reference's ids that the result has."""
    rows = zip(*(t.flatten(0, -2).tolist() for t in (value, reference, kept)), strict=True)
    shares: list[float] = []
    for found, wanted, keep in rows:
        ids = {i for i, k in zip(wanted, keep, strict=True) if k and i >= 0}
        if ids:
            shares.append(len(ids & set(found)) / len(ids))
    return sum(shares) / len(shares) if shares else 1.0


def _as_sets(value: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Sort ids in each row, -1 last, and cut or fill both to the same width."""
    width = max(value.shape[-1], reference.shape[-1])

    def ordered(ids: Tensor) -> Tensor:
        ids = torch.nn.functional.pad(ids.long(), (0, width - ids.shape[-1]), value=-1)
        return ids.sort(dim=-1, descending=True).values

    return ordered(value), ordered(reference)


def _spacing(ref: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighbours of `dtype` at |ref|, float64."""
    exponent = torch.frexp(ref.abs()).exponent - 1
    exponent = torch.where(ref == 0, _LEAST_EXPONENT[dtype], exponent)
    exponent = exponent.clamp(min=_LEAST_EXPONENT[dtype])
    return torch.ldexp(torch.ones_like(ref), exponent - _MANTISSA_BITS[dtype])


def _place(gap: Tensor, value: Tensor, reference: Tensor) -> str:
    if not gap.numel() or gap.max() == 0:
        return ""
    at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    found, wanted = value[at].item(), reference[at].item()
    return f"; worst at {at}: {found} instead of {wanted}; {int((gap > 0).sum())} differ"


def _decode(codes: Tensor, scale: Tensor) -> Tensor:
    return decode_parts(codes, scale, _BYTES_A_SCALE[codes.shape[-1] // scale.shape[-1]])


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.float64)


def _stem(file: str) -> str:
    return file.removesuffix(".safetensors")


def _tolerances(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry["tolerance"], *entry.get("tolerance_alternatives", [])]
