"""What `speculative_config` says: how many drafts, who chooses, and what is known beforehand.

Knows nothing of the checkpoint that proposes the drafts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from deepinfer.errors import ConfigError
from deepinfer.runner.verification import RULES, RuleName
from deepinfer.scheduler import Drafting

_KEYS = (
    "method",
    "num_speculative_tokens",
    "policy",
    "temperature",
    "profile_seconds",
    "verification",
)
_CALIBRATION = "calibration.json"
_POLICIES = ("adaptive", "fixed", "off")


@dataclass(frozen=True)
class Speculative:
    """`speculative_config`, checked.

    Attributes:
        tokens: most drafts verified a step and row; 0 = no speculation.
        drafting: whether measured time and confidences choose how many, or all are verified; and
            the start temperature of the confidences.
        profile_seconds: time for measuring steps at the start; 0 = learn from real steps.
        verification: the rule by which drafts are kept.
    """

    tokens: int = 0
    drafting: Drafting = Drafting()
    profile_seconds: float = 0.0
    verification: RuleName = "match"


def speculative(config: Mapping[str, object] | None) -> Speculative:
    """Read `speculative_config`.

    Args:
        config: None, or `method` ("dspark"), `num_speculative_tokens` (3), `policy` ("fixed",
            "adaptive" or "off"), `temperature` (1.0: a number, or one for each draft of a block),
            `profile_seconds` (0), `verification` ("match": the tokens of a run without drafts;
            "ratio" or "block": their distribution, and more drafts are accepted).

    Raises:
        ConfigError: it names another method, something unknown, or a value out of range.
    """
    if config is None:
        return Speculative()
    if unknown := sorted(set(config) - set(_KEYS)):
        raise ConfigError(f"speculative_config: unknown key(s) {unknown}; use some of {_KEYS}")
    method, count = config.get("method", "dspark"), config.get("num_speculative_tokens", 3)
    if method != "dspark":
        raise ConfigError(
            f"speculative_config: method {method!r}; only the checkpoint's own draft stages "
            "('dspark') are used"
        )
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ConfigError(f"num_speculative_tokens {count!r}: use an integer >= 0")
    policy = config.get("policy", "fixed")
    if policy not in _POLICIES:
        raise ConfigError(f"speculative_config: policy {policy!r}; use one of {_POLICIES}")
    seconds = _number(config.get("profile_seconds", 0))
    if seconds is None or seconds < 0:
        raise ConfigError(f"profile_seconds {config['profile_seconds']!r}: use seconds >= 0")
    rule = config.get("verification", "match")
    if rule not in RULES:
        raise ConfigError(f"speculative_config: verification {rule!r}; use one of {RULES}")
    return Speculative(
        tokens=0 if policy == "off" else count,
        drafting=Drafting(policy == "adaptive", _temperature(config.get("temperature", 1.0))),
        profile_seconds=seconds,
        verification=rule,
    )


def _temperature(value: object) -> float | tuple[float, ...]:
    given = list(cast("Sequence[object]", value)) if isinstance(value, (list, tuple)) else [value]
    found = [_number(item) for item in given]
    numbers = tuple(item for item in found if item is not None and item > 0)
    if not numbers or len(numbers) < len(found):
        raise ConfigError(
            f"speculative_config: temperature {value!r}; use a number > 0, or one for each draft"
        )
    return numbers if isinstance(value, (list, tuple)) else numbers[0]


def _number(value: object) -> float | None:
    """The value if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def calibrated(directory: Path, config: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """`speculative_config` with the start temperatures of a model that brings them.

    Args:
        directory: of the checkpoint; its `calibration.json` is {"temperature": [numbers]}.
        config: as given; a temperature that it names itself stays.

    Raises:
        ConfigError: the file is there and cannot be read so.
    """
    path = directory / _CALIBRATION
    if config is None or "temperature" in config or not path.exists():
        return config
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))["temperature"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'{path}: expected {{"temperature": [numbers]}}: {error!r}') from error
    return {**config, "temperature": found}
