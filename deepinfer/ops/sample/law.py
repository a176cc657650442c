"""Steps 4 to 7: temperature, min_p, top-k, top-p. Knows nothing of rules, noise or rows.

The law of a position is written as unnormalised log-probabilities: [n, vocab] fp32, maximum 0 in
each row, -inf = impossible.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.ops.sample.elementary import mass


def scale(possible: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """Step 4: (logit - best logit) / temperature; a row without any possible id gets 0s.

    The difference costs no accuracy where it matters, and keeps the sum with the noise small.

    Args:
        possible: [n, vocab] fp32, finite or -inf.
        best: [n] fp32, the maxima.
        temperature: [n] fp32, > 0.
    """
    nothing = (best == -math.inf).unsqueeze(1)
    difference = torch.where(nothing, 0.0, possible - best.unsqueeze(1))
    return difference / temperature.unsqueeze(1)


def certain(ids: Tensor, like: Tensor) -> Tensor:
    """The law of greedy rows, of the shape of `like`: 0 at `ids` [n] int64, -inf elsewhere."""
    return torch.full_like(like, -math.inf).scatter_(1, ids.unsqueeze(1), 0.0)


def truncate(scaled: Tensor, log_min_p: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Leave the likeliest ids of each row; ties at a cut go to the lower id.

    top_p is the smallest prefix of the order (probability descending, id ascending) whose mass
    reaches it, over what min_p and top-k have left. Masses are integers, so that the cut does not
    depend on the order of a sum.

    Args:
        scaled: [n, vocab] fp32, maximum 0 in each row, -inf = impossible.
        log_min_p: [n] fp32, least log-probability relative to the likeliest; -inf = off.
        top_k: [n] int64, 0 = all.
        top_p: [n] float64 in (0, 1].

    Returns:
        `scaled` with -inf in place of what is cut off.
    """
    scaled = scaled.masked_fill(scaled < log_min_p.unsqueeze(1), -math.inf)
    value, ids = scaled.sort(dim=1, descending=True, stable=True)
    place = torch.arange(scaled.shape[1], device=scaled.device)
    top_k, top_p = top_k.unsqueeze(1), top_p.unsqueeze(1)
    value = value.masked_fill((top_k > 0) & (place >= top_k), -math.inf)
    masses = mass(value)
    up_to = masses.cumsum(1)
    wanted = (top_p * up_to[:, -1:].to(torch.float64)).ceil().to(torch.int64)
    reached = up_to - masses >= wanted  # before this id already
    value = value.masked_fill(reached & (top_p < 1), -math.inf)
    return torch.empty_like(value).scatter_(1, ids, value)
