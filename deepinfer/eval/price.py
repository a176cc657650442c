"""What a run costs: time of devices, energy, people; and what the same tokens cost from a list.

Knows nothing of scores. Where devices wait or serve others at the same time, the whole time is
charged all the same: idle time has to be paid by somebody (serving.md 6.1).
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from deepinfer.errors import ConfigError

_HOUR = 3600.0


@dataclass(frozen=True)
class PriceSheet:
    """Prices in one currency.

    Attributes:
        currency: its code.
        device_hour: one device for one hour: capital and hosting.
        device_watts: mean draw of a device with its part of the host, in watts.
        energy_kwh: one kilowatt-hour.
        staff_hour: one hour of a person.
        staff_share: part of a person's working time that one device takes, 0..1.
        prompt_million, cached_million, completion_million: a million tokens at list price:
            prompt tokens that were computed, that came from a cache, and completion tokens. All
            three or none.
    """

    currency: str
    device_hour: float
    device_watts: float = 0.0
    energy_kwh: float = 0.0
    staff_hour: float = 0.0
    staff_share: float = 0.0
    prompt_million: float | None = None
    cached_million: float | None = None
    completion_million: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "currency":
                good = isinstance(value, str) and bool(value)
            else:
                number = isinstance(value, int | float) and not isinstance(value, bool)
                good = (number and math.isfinite(value) and value >= 0) or (
                    value is None and item.name in _LIST
                )
            if not good:
                raise ConfigError(f"price sheet: {item.name} = {value!r}; use a number >= 0")
        if self.staff_share > 1:
            raise ConfigError(f"price sheet: staff_share = {self.staff_share}; use 0 to 1")
        if len({getattr(self, name) is None for name in _LIST}) != 1:
            raise ConfigError(f"price sheet: give all of {', '.join(_LIST)}, or none")


_LIST = ("prompt_million", "cached_million", "completion_million")


def read_price_sheet(path: Path) -> PriceSheet:
    """A price sheet from a TOML file whose keys are the attributes of `PriceSheet`.

    Raises:
        ConfigError: it cannot be read, a key is unknown or missing, or a value is out of range.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    known = [item.name for item in fields(PriceSheet)]
    if unknown := sorted(values.keys() - set(known)):
        raise ConfigError(f"{path}: unknown key(s) {unknown}; known are {known}")
    try:
        return PriceSheet(**values)
    except TypeError as error:
        raise ConfigError(f"{path}: {error}") from error


@dataclass(frozen=True)
class Use:
    """What was used.

    Attributes:
        device_seconds: devices times seconds; None if the devices are not known.
        prompt_tokens: of all prompts, cached ones included.
        cached_tokens: of these, those that came from a cache.
        completion_tokens: generated.
    """

    device_seconds: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Cost:
    """Money, in the sheet's currency.

    Attributes:
        currency: its code.
        device, energy, staff, owner: what the owner of the devices pays, and the sum; None if the
            device time is not known. Energy is an estimate: mean draw times time.
        list_price: the same tokens at list price; None without a list.
    """

    currency: str
    device: float | None
    energy: float | None
    staff: float | None
    owner: float | None
    list_price: float | None


def cost_of(use: Use, sheet: PriceSheet) -> Cost:
    """What `use` costs."""
    device = energy = staff = owner = None
    if use.device_seconds is not None:
        hours = use.device_seconds / _HOUR
        device = hours * sheet.device_hour
        energy = hours * sheet.device_watts / 1000 * sheet.energy_kwh
        staff = hours * sheet.staff_share * sheet.staff_hour
        owner = device + energy + staff
    return Cost(sheet.currency, device, energy, staff, owner, _list_price(use, sheet))


def _list_price(use: Use, sheet: PriceSheet) -> float | None:
    if (
        sheet.prompt_million is None
        or sheet.cached_million is None
        or sheet.completion_million is None
    ):
        return None
    computed = use.prompt_tokens - use.cached_tokens
    return (
        computed * sheet.prompt_million
        + use.cached_tokens * sheet.cached_million
        + use.completion_tokens * sheet.completion_million
    ) / 1e6
