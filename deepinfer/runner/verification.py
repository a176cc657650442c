"""How drafts are judged: the rule, which noise draws them, and what it has to remember.

Knows nothing of networks and plans.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from deepinfer.ops.noise import NoiseKey, Purpose
from deepinfer.ops.sample import Drawing, SamplerState
from deepinfer.ops.verify import Verified, allocate_draft_laws, block, ratio, verify

RuleName = Literal["match", "ratio", "block"]
RULES: tuple[RuleName, ...] = get_args(RuleName)


class Verification:
    """One rule for all rows.

    Args:
        name: "match" gives the tokens of a run without drafts; "ratio" and "block" keep their
            distribution and accept more.
        rows, cap, vocab: of the row table, for the laws that ratio and block remember.
        device: where they lie.

    Raises:
        ConfigError: the laws would take too much memory.

    Attributes:
        laws: [rows, cap, vocab] fp32 of the drafts at hand, None for match.
    """

    def __init__(
        self, name: RuleName, rows: int, cap: int, vocab: int, device: torch.device | str = "cpu"
    ):
        self.name = name
        self.laws: Tensor | None = None
        if name != "match":
            self.laws = allocate_draft_laws(rows, cap, vocab, device)
        self._match = verify.bind()

    @property
    def purpose(self) -> Purpose:
        """Of the noise of drafts: that of the position itself only where it does no harm."""
        return Purpose.TARGET if self.name == "match" else Purpose.DRAFT

    def drawing(self, state: SamplerState, rows: Tensor, length: Tensor) -> Drawing:
        """What draws the next drafts of rows [groups] that know `length` [groups] tokens."""
        return Drawing(state, rows, length, self.purpose, self.laws)

    def judge(
        self,
        drafts: Tensor,
        chosen: Tensor,
        flags: Tensor,
        law: Tensor | None,
        rows: Tensor,
        key: NoiseKey,
    ) -> Verified:
        """Which drafts are kept.

        Args:
            drafts: see `ops.verify`.
            chosen: see there.
            flags: see there.
            law: [groups, 1 + cap, vocab] fp32 of the columns; None for match.
            rows: [groups] int64.
            key: of the first column.
        """
        if self.laws is None:
            return self._match(drafts, chosen, flags)
        assert law is not None, "the sampler keeps laws for these rules"
        rule = ratio if self.name == "ratio" else block
        return rule(drafts, chosen, flags, law, self.laws[rows], key)
