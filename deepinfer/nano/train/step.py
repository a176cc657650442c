"""One training step: losses of the network and of the drafter, backward pass, optimiser.

It does not know schedules or files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.model.engram_map import EngramMap
from deepinfer.nano.data.pack import Batch
from deepinfer.nano.train.bank import Bank
from deepinfer.nano.train.drafter import Drafter, anchors
from deepinfer.nano.train.losses import accuracy_by_kind, next_token_loss, targets_of
from deepinfer.nano.train.network import Fuse, Network
from deepinfer.nano.train.optimise import Optimiser, Rates
from deepinfer.nano.train.rows import SPOKEN, Rows, decoder_starts, place_rows

_REPLAYED = 0.5  # share of the documents whose prompts stop at the boundary layer


@dataclass(frozen=True)
class Report:
    """Numbers of one batch, still on the device.

    loss, index, draft: means; accepted [block] expected acceptance of each draft when those before
    are right; doubt: mean error of the confidences; right [2, kinds] right and all spoken targets;
    norm: of the gradient; crowd: largest load of an expert over the mean one.
    """

    loss: Tensor
    index: Tensor
    draft: Tensor
    accepted: Tensor
    doubt: Tensor
    right: Tensor
    norm: Tensor
    crowd: Tensor


class Trainer:
    """Network, drafter, masters and optimiser of one run.

    Args:
        arch: the architecture, with draft stages.
        engram_map: hash constants.
        device: where to compute.
        seed: of the first masters and of all draws.
        fuse: compiles parts.
        stride: distance of draft anchors; divides the window.
        kinds: number of kinds of text.
        rates: sizes of steps.
    """

    def __init__(
        self,
        arch: Arch,
        engram_map: EngramMap | None,
        device: torch.device,
        *,
        seed: int,
        fuse: Fuse,
        stride: int,
        kinds: int,
        rates: Rates,
    ):
        self.arch = arch
        self.device = device
        self.kinds = kinds
        self.network = Network(arch, engram_map, device, fuse)
        self.drafter = Drafter(self.network, stride, fuse)
        self.bank = Bank(arch, seed, device)
        self.optimiser = Optimiser(self.bank, rates)
        self.head_loss = fuse(next_token_loss)

    def rows(self, batch: Batch, random: np.random.Generator) -> Rows:
        """A batch on the device, some of its documents replayed."""
        starts = decoder_starts(batch, self.arch.decoder_keep, _REPLAYED, random)
        return place_rows(batch, starts, self.arch, self.device)

    def train(self, rows: Rows, *, sparse: bool, offset: int, factor: float) -> Report:
        """One step.

        Args:
            rows: the batch.
            sparse: attend to selected entries only.
            offset: of the draft anchors, below the stride.
            factor: on all rates.
        """
        weights = self.bank.working(torch.bfloat16, quantise=True)
        report, load, total = self._losses(rows, weights, sparse, offset)
        total.backward()  # type: ignore[no-untyped-call]
        norm = self.optimiser.step(weights, load, factor)
        crowd = torch.stack([(share / share.mean()).amax() for share in load.values()]).amax()
        return replace(report, norm=norm, crowd=crowd)

    def rehearse(self, rows: Rows, *, sparse: bool) -> None:
        """Compile what a step with such rows needs; nothing is changed."""
        weights = self.bank.working(torch.bfloat16, quantise=True)
        self._losses(rows, weights, sparse, 0)[2].backward()

    def measure(self, rows: Rows, *, quantise: bool = True) -> Report:
        """The same numbers without a step, as the engine computes: entries are selected."""
        weights = self.bank.working(torch.bfloat16, quantise=quantise)
        return self._losses(rows, weights, True, 0)[0]

    def confidences(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Raw confidences, whether greedy drafts are right, and whether they count.

        All [anchors, block]; the tokens before each draft are those of the text.
        """
        # With gradients enabled, though none is made: compiled parts are the same then.
        assert self.arch.draft is not None
        weights = self.bank.working(torch.bfloat16, quantise=True)
        trace = self.network.forward(rows, weights, sparse=True)
        found = anchors(rows, self.drafter.stride, 0, self.arch.draft.block_size)
        logits, says, target = self.drafter.guesses(rows, trace, found, weights)
        return says.detach(), logits.argmax(-1) == target.argmax(-1), found.weights >= SPOKEN

    def _losses(
        self, rows: Rows, weights: dict[str, Tensor], sparse: bool, offset: int
    ) -> tuple[Report, dict[str, Tensor], Tensor]:
        trace = self.network.forward(rows, weights, sparse=sparse)
        targets, each, kinds = targets_of(rows)
        loss, right = self.head_loss(trace.hidden, weights["head.weight"], targets, each)
        assert self.arch.draft is not None
        found = anchors(rows, self.drafter.stride, offset, self.arch.draft.block_size)
        drafts, load = self.drafter.loss(rows, trace, found, weights)
        total = loss + trace.index_loss + drafts.total
        numbers = Report(
            loss=loss.detach(),
            index=trace.index_loss.detach(),
            draft=drafts.total.detach(),
            accepted=drafts.accepted,
            doubt=drafts.confidence_error,
            right=accuracy_by_kind(right, each, kinds, self.kinds),
            norm=loss.new_zeros(()),
            crowd=loss.new_zeros(()),
        )
        return numbers, trace.load | load, total
