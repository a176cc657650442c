"""What the TileLang kernels refuse; importable without TileLang, which loads slowly.

Knows nothing of what they compute.
"""

from __future__ import annotations

from collections.abc import Iterable

SERVED = ("sm90", "sm100", "sm103", "ascend")
_GROUP = 32  # columns of an FP8 group; Ascend copies whole 32 bytes
_FEW, _MANY = 512, 256


def _machine(arch: str, quantised: bool) -> str | None:
    if arch not in SERVED:
        return f"lowered for {', '.join(SERVED)}, not {arch}"
    return None if quantised else "takes bf16 and FP8 only"


def streams(*, arch: str, quantised: bool, hidden: int, **_facts: object) -> str | None:
    """None if kernels over rows of `hidden` serve, else why not; facts as `Op.bind` passes them."""
    if why_not := _machine(arch, quantised):
        return why_not
    return f"hidden {hidden}; serves multiples of {_GROUP}" if hidden % _GROUP else None


def query(*, arch: str, quantised: bool, rank: int, **_facts: object) -> str | None:
    """None if the kernel over rows of the low-rank query serves, else why not."""
    return _machine(arch, quantised) or width_of_groups(rank)


def width_of_groups(width: int) -> str | None:
    """None if rows of FP8 groups are served, else why not: TileLang 0.1.15 finds no layout."""
    if width % (_GROUP if width <= _FEW else _MANY) == 0:
        return None
    return f"rows of {width}; serves multiples of {_GROUP} to {_FEW}, of {_MANY} beyond"


def linear(
    *, arch: str, quantised: bool, linear_shapes: Iterable[tuple[int, int]], **_facts: object
) -> str | None:
    """None if `linear_fp8` serves all matrices [out, K] of the model, else why not."""
    if why_not := _machine(arch, quantised):
        return why_not
    return next((why for shape in linear_shapes if (why := shape_of_linear(*shape))), None)


def shape_of_linear(out: int, columns: int) -> str | None:
    """None if a weight of this shape is served, else why not."""
    if out % _GROUP or columns % _GROUP:
        return f"a weight of {out} x {columns}; serves multiples of {_GROUP}"
    return None
