"""What requests say about sampling and lengths, checked and resolved for the model.

It does not know where protocols keep these wishes.
"""

from __future__ import annotations

import struct

from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.options import ConversionOptions, ModelVersion

MOST_STOPS = 16
MOST_LOGPROBS = 20
SEEDS = 2**63
# Nucleus that the models were tuned with, a 32-bit float (recipe.md 2.17).
_NUCLEUS: float = struct.unpack("f", struct.pack("f", 0.95))[0]


def model_version(model: str, options: ConversionOptions) -> ModelVersion:
    """The model that is called `model`.

    Raises:
        ConversionError: none is.
    """
    known = options.model_versions_by_name
    if model not in known:
        names = ", ".join(sorted(known))
        raise ConversionError(
            f"The supported API model names are {names}, but you passed {model}.", "model"
        )
    return known[model]


def temperature(requested: float | None, thinking: bool) -> float:
    """The temperature to sample with, 1 in thinking mode.

    Raises:
        ConversionError: outside [0, 2].
    """
    check_range("temperature", requested, 0, 2)
    return 1.0 if thinking or requested is None else requested


def top_p(requested: float | None, version: ModelVersion, thinking: bool, has_tools: bool) -> float:
    """The nucleus to sample from (recipe.md 2.17).

    Raises:
        ConversionError: outside (0, 1].
    """
    if requested is not None and not 0 < requested <= 1:
        raise ConversionError("Invalid top_p value, the valid range of top_p is (0, 1.0]", "top_p")
    asked = 1.0 if requested is None else requested
    if version is ModelVersion.DeepseekV41Flash:
        return max(asked, _NUCLEUS) if thinking else 1.0
    if thinking:
        return _NUCLEUS if has_tools else 1.0
    return asked


def max_tokens(
    requested: int | None, options: ConversionOptions, thinking: bool, *, lower: bool = False
) -> int | None:
    """The output limit as requested.

    Args:
        requested: the wish.
        options: has the bound.
        thinking: the mode, on which the bound depends.
        lower: lower a wish beyond the bound instead of refusing it.

    Raises:
        ConversionError: outside [1, bound].
    """
    if requested is None:
        return None
    bound = options.max_tokens_upper_bound(thinking)
    if requested < 1 or (requested > bound and not lower):
        raise ConversionError(
            f"Invalid max_tokens value, the valid range of max_tokens is [1, {bound}]", "max_tokens"
        )
    return min(requested, bound)


def top_logprobs(requested: int | None) -> int | None:
    """How many alternatives to report.

    Raises:
        ConversionError: more than 20.
    """
    if requested is not None and requested > MOST_LOGPROBS:
        raise ConversionError(
            f"Invalid top_logprobs value, the valid range of top_logprobs is [0, {MOST_LOGPROBS}].",
            "top_logprobs",
        )
    return requested


def check_range(name: str, value: float | None, least: int, most: int) -> None:
    """Accept a number in a closed range, or none.

    Raises:
        ConversionError: it lies outside, or is no number.
    """
    if value is not None and not least <= value <= most:
        raise ConversionError(
            f"Invalid {name} value, the valid range of {name} is [{least}, {most}]", name
        )


def check_stops(stops: list[str], place: str, *, single: bool = False) -> None:
    """Accept up to 16 texts that are not empty.

    Args:
        stops: the texts.
        place: what errors call the list.
        single: the request had one text in the place of a list.

    Raises:
        ConversionError: too many, or an empty one.
    """
    if len(stops) > MOST_STOPS:
        raise ConversionError(f"Stop string array too long: {len(stops)}", place)
    for i, stop in enumerate(stops):
        if not stop:
            where = place if single else f"{place}[{i}]"
            raise ConversionError(
                f"Invalid '{where}': empty string. Expected a string with minimum length 1, but "
                "got an empty string instead.",
                where,
            )
