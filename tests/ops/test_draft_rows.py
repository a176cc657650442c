"""What draft blocks start from and where drafts go, against plain loops over rows."""

from types import SimpleNamespace
from typing import Any

import torch

from deepinfer.ops.draft_start import draft_start
from deepinfer.ops.draft_store import draft_store
from deepinfer.ops.leading import leading_rows

ROWS, WIDTH, BLOCK, NOISE = 12, 40, 5, 77


def table(device: torch.device | str = "cpu", seed: int = 0) -> Any:
    draw = torch.Generator().manual_seed(seed)

    def some(low: int, high: int, *width: int) -> torch.Tensor:
        return torch.randint(low, high, (ROWS, *width), generator=draw).to(device)

    return SimpleNamespace(
        tokens=some(0, 999, WIDTH),
        length=some(1, 30),
        slot=some(1, 9),
        decoder_start=some(0, 20),
        lower=some(0, 20),
        drafts=some(0, 3),
        confidence=torch.randn(ROWS, 4, generator=draw).to(device),
    )


def test_blocks_start_behind_the_newest_token():
    known, rows = table(), torch.tensor([3, 7, 1, 11, 0, 0])
    found = draft_start.reference(known, rows, block=BLOCK, noise=NOISE)
    for place, row in enumerate(rows.tolist()):
        length = int(known.length[row])
        assert int(found.newest[place]) == int(known.tokens[row, length - 1])
        assert int(found.anchors[place]) == max(length - 2, 0)
        assert int(found.slots[place]) == (int(known.slot[row]) if row else 0)
        wanted = max(int(known.decoder_start[row]), int(known.lower[row]))
        assert int(found.lower[place]) == wanted
        own = slice(place * BLOCK, (place + 1) * BLOCK)
        assert found.ids[own].tolist() == [int(found.newest[place]), *[NOISE] * (BLOCK - 1)]
        first = int(found.anchors[place]) + 1
        assert found.positions[own].tolist() == list(range(first, first + BLOCK))


def test_drafts_stand_behind_the_known_tokens_of_their_rows_and_nowhere_else():
    known, rows = table(), torch.tensor([3, 7, 1, 11])
    before = {name: value.clone() for name, value in vars(known).items()}
    tokens, confidence = torch.arange(12).view(3, 4).T, torch.randn(4, 3)
    packed = draft_store.reference(known, rows, tokens, confidence)
    for place, row in enumerate(rows.tolist()):
        length = int(known.length[row])
        assert known.tokens[row, length : length + 3].tolist() == tokens[place].tolist()
        assert torch.equal(known.confidence[row, :3], confidence[place])
        assert int(known.drafts[row]) == 3
        before["tokens"][row, length : length + 3] = tokens[place]
        before["confidence"][row, :3] = confidence[place]
        before["drafts"][row] = 3
    assert all(torch.equal(value, before[name]) for name, value in vars(known).items())
    assert packed[:, :3].tolist() == tokens.tolist()
    assert torch.equal(packed[:, 3:].contiguous().view(torch.float32), confidence)


def test_the_first_rows_of_every_block_are_copies():
    codes = torch.arange(30).view(15, 2).to(torch.uint8)
    tensors = [torch.randn(15, 3, 2), torch.arange(15), codes]
    found = leading_rows.reference(tensors, block=5, count=2)
    for given, kept in zip(tensors, found, strict=True):
        assert torch.equal(kept, given[[0, 1, 5, 6, 10, 11]])
        assert kept.is_contiguous()
