"""How well greedy tokens of two engines agree, and how well they can.

Activations are quantised: a value at the border of two codes moves by a whole step when a sum is
added in another order, and random weights hand that on. Two right engines therefore choose other
tokens now and then, also where one of them is decided. What can be expected is measured: references
against themselves with single results moved by the least amount. Tokens are compared only behind
equal ones, where both sides chose with the same context. Knows no engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepinfer.model.network import Network

UNDECIDED = 1e-2  # nats between the two likeliest tokens
SHAKEN = "grouped_output"  # the operation whose results are moved
SHARE = 0.01  # of its results
_ERRORS = 4  # standard errors within which two shares count as the same


class Agreement(NamedTuple):
    """Tokens behind equal tokens: those of each request up to its first difference and with it.

    Attributes:
        compared: such tokens.
        differences: requests that differ somewhere.
    """

    compared: int
    differences: int

    @property
    def share(self) -> float:
        """Part of the tokens that are equal."""
        return 1 - self.differences / max(self.compared, 1)

    @property
    def error(self) -> float:
        """Standard error of `share`, with a difference and an equal token more than were seen."""
        total = self.compared + 2
        chance = (self.differences + 1) / total
        return math.sqrt(chance * (1 - chance) / total)

    def no_worse(self, expected: Agreement) -> bool:
        """Whether chance explains that the share is smaller than the expected one."""
        return self.share >= expected.share - _ERRORS * math.hypot(self.error, expected.error)


def behind_equal(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> Agreement:
    """Compare generated tokens, request by request; the shorter of two ends the comparison."""
    compared = differences = 0
    for own, other in zip(ours, theirs, strict=True):
        apart = _first_difference(own, other)
        compared += min(len(own), len(other)) if apart is None else apart + 1
        differences += apart is not None
    return Agreement(compared, differences)


def compared(
    ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], between: Sequence[list[float]]
) -> dict[str, Any]:
    """Whether tokens agree until the reference is undecided for the first time, for each request.

    Args:
        ours: generated tokens.
        theirs: of the reference.
        between: nats between its likeliest and its second token, at every place.

    Returns:
        `equal`, how many tokens that covers, how many requests are equal to their end, the largest
        gap at which one left the reference, and `behind_equal`, the share of equal tokens behind
        equal ones.
    """
    covered, equal, whole = 0, True, 0
    left = 0.0
    for own, other, gap in zip(ours, theirs, between, strict=True):
        decided = next((i for i, g in enumerate(gap) if g < UNDECIDED), len(gap))
        apart = _first_difference(own, other)
        covered += decided
        whole += apart is None
        if apart is not None:
            equal &= apart >= decided
            left = max(left, gap[apart])
    return {
        "equal": equal,
        "equal_tokens_asked": covered,
        "requests_equal_to_the_end": whole,
        "largest_gap_at_a_difference": left,
        "behind_equal": behind_equal(ours, theirs).share,
    }


def shake(network: Network, share: float = SHARE, seed: int = 1) -> None:
    """From now on some results of `SHAKEN` are one unit in the last place larger or smaller.

    Args:
        network: changed in place; it then must not be captured in a graph.
        share: of the results that are moved.
        seed: of the choice.
    """
    bound = getattr(network.ops, SHAKEN)
    draws = torch.Generator(network.device).manual_seed(seed)

    def run(*args: Any, **kwargs: Any) -> Tensor:
        return moved(bound(*args, **kwargs), share, draws)

    implementation = replace(bound.implementation, run=run, graph_safe=False)
    shaken = replace(bound, implementation=implementation)
    network.ops = network.block.ops = replace(network.ops, **{SHAKEN: shaken})


def moved(values: Tensor, share: float, draws: torch.Generator) -> Tensor:
    """Values, a share of them one unit in the last place away; zeros stay.

    Args:
        values: bf16 or fp32, finite.
        share: chance of each.
        draws: random numbers, on the device of `values`.
    """
    bits = torch.int16 if values.dtype == torch.bfloat16 else torch.int32
    drawn = torch.rand(values.shape, generator=draws, device=values.device)
    way = torch.where(drawn < share / 2, 1, -1).to(bits)
    chosen = (drawn < share) & (values != 0)
    return (values.contiguous().view(bits) + way * chosen).view(values.dtype)


def _first_difference(own: Sequence[int], other: Sequence[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), None)
