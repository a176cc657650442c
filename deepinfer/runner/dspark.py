"""Drafts from the checkpoint's own draft stages, for rows of the engine.

Knows nothing of how many drafts a step verifies.
"""

from __future__ import annotations

from torch import Tensor

from deepinfer.device import find_device
from deepinfer.model.drafter import Drafter
from deepinfer.model.network import Forward, Network
from deepinfer.model.state import State
from deepinfer.ops.draft_start import draft_start
from deepinfer.runner.rows import Rows
from deepinfer.runner.runner import Proposal
from deepinfer.runner.verification import Drawing


class DraftStages:
    """Proposes drafts; the newest token and the draft rings are all that it looks at.

    Args:
        network: with draft stages.
        drafts: how many of a block are proposed, 1 to the block size.

    Raises:
        ValueError: the network has no draft weights, or `drafts` is out of range.
    """

    graph_safe = True

    def __init__(self, network: Network, drafts: int):
        self._drafter = Drafter(network)
        block = self._drafter.draft_arch.block_size
        if not 1 <= drafts <= block:
            raise ValueError(f"{drafts} drafts: the stages propose blocks of {block}")
        self._drafts = drafts
        self._start = draft_start.bind(arch=find_device(str(network.device)).arch)

    def seed(self, forward: Forward, state: State) -> None:
        """Store the stages' keys of the positions that the step computed.

        Those of rejected drafts are written again by the step that computes their positions.
        """
        assert forward.features is not None, "a network with draft stages collects features"
        if len(forward.features):
            self._drafter.seed(forward.features, forward.batch, state)

    def propose(self, rows: Rows, groups: Tensor, state: State, drawing: Drawing) -> Proposal:
        """Drafts that follow each row's newest token, whose own features do not exist yet."""
        draft = self._drafter.draft_arch
        start = self._start(rows, groups, block=draft.block_size, noise=draft.noise_token_id)
        found = self._drafter.draft_from(start, state, drawing, count=self._drafts, keep=False)
        return Proposal(found.tokens, found.confidence)
