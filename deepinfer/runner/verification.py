"""How drafts are judged: the rule, how drafts are drawn for it, and what it has to remember.

Knows nothing of networks and plans.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from deepinfer.ops.markov_draft import Choose
from deepinfer.ops.noise import NoiseKey, Purpose
from deepinfer.ops.sample import Candidates, SamplerState, candidates, draw_drafts
from deepinfer.ops.verify import Verified, allocate_draft_laws, block, ratio, verify

RuleName = Literal["match", "ratio", "block"]
RULES: tuple[RuleName, ...] = get_args(RuleName)


class Drawing(NamedTuple):
    """Draws the drafts of a block; keeps their laws where the rule needs them.

    Attributes:
        state: sampling values of all rows.
        rows: [groups] int64.
        length: [groups] int64, tokens known: the position of the first draft.
        purpose: of the noise.
        laws: [rows, cap, vocab] fp32 that takes the laws, or None.
    """

    state: SamplerState
    rows: Tensor
    length: Tensor
    purpose: Purpose
    laws: Tensor | None

    def start(self, base: Tensor) -> Choose:
        """What chooses drafts [groups] int64 place by place; see `markov_draft`.

        Args:
            base: [groups, block, vocab] fp32.
        """
        groups, block = base.shape[:2]
        among: list[Candidates | None] = [None] * block
        if self.state.uses.noise:
            place = torch.arange(block, device=base.device)
            positions = (self.length.unsqueeze(1) + place).flatten()
            rows = self.rows.unsqueeze(1).expand(-1, block).flatten()
            found = candidates(base.flatten(0, 1), self.state, rows, positions, self.purpose)
            parts = [part.unflatten(0, (groups, block)).unbind(1) for part in found]
            among = [Candidates(*part) for part in zip(*parts, strict=True)]

        def choose(logits: Tensor, place: int) -> Tensor:
            keep = self.laws is not None and place < self.laws.shape[1]
            drawn = draw_drafts(logits, self.state, self.rows, among[place], keep)
            if self.laws is not None and drawn.law is not None:
                self.laws[self.rows, place] = drawn.law
            return drawn.tokens

        return choose


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
