"""A training batch on the device: packed documents, and who may see whom.

It does not know weights. A row holds several documents; each begins at an even offset, so that the
pairs of a ratio-2 compressor are neighbours in the row.
Source: `spec/model.md` 6, 9.4; `spec/model-decisions.md` D31, D37, D52.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.arch import Arch
from deepinfer.device import upload
from deepinfer.nano.data.pack import Batch
from deepinfer.ops.rotation import Rotation, layer_frequencies

SPOKEN = 0.5  # least weight of a target that the model speaks


@dataclass(frozen=True)
class Rows:
    """Tensors of one step.

    ids, documents, positions, kinds [rows, length] int64; weights fp32 of the ids as targets;
    lower [rows, length] int64, the decoder start of each token's document (a position).
    history [rows * length, n-gram] int64, newest first, -1 before the start.
    near, near_decoder [groups, chunk, 2 * chunk] bool, what a chunk of queries sees of its own and
    the chunk before; far {ratio: [rows, length, entries]} bool, visible entries.
    window, compressed: angles of all tokens.
    """

    ids: Tensor
    documents: Tensor
    positions: Tensor
    kinds: Tensor
    weights: Tensor
    lower: Tensor
    history: Tensor
    near: Tensor
    near_decoder: Tensor
    far: dict[int, Tensor]
    window: Rotation
    compressed: Rotation

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and length."""
        return self.ids.shape[0], self.ids.shape[1]


def decoder_starts(
    packed: Batch, keep: int, share: float, random: np.random.Generator
) -> NDArray[np.int64]:
    """Decoder starts as bounded replay sets them, for a share of the documents, 0 for the others.

    A document's start is `keep` positions before one of its spoken runs, chosen at random: as if
    everything before that run had been the prompt.

    Args:
        packed: the batch; a target of weight >= 0.5 is spoken.
        keep: prompt rows that run the decoder layers, `Arch.decoder_keep`.
        share: of the documents that are replayed.
        random: where choices come from.

    Returns:
        [rows, length], for every token that of its document.
    """
    documents = packed.documents.astype(np.int64)
    count = int(documents.max()) + 2  # the last one is that of padding
    numbers = np.arange(len(documents))[:, None] * count + np.where(
        documents < 0, count - 1, documents
    )
    spoken = packed.weights >= SPOKEN
    before = np.pad(spoken[:, :-1], ((0, 0), (1, 0)))
    begins = np.flatnonzero(spoken & ~before)
    # Of the runs in random order, the last one of a document stays.
    begins = random.permutation(begins)
    starts = np.zeros(len(documents) * count, dtype=np.int64)
    places = packed.positions.reshape(-1)[begins].astype(np.int64)
    starts[numbers.reshape(-1)[begins]] = np.maximum(places - keep, 0)
    starts[random.random(len(starts)) >= share] = 0
    starts[count - 1 :: count] = 0
    return starts[numbers]


def place_rows(packed: Batch, lower: NDArray[np.int64], arch: Arch, device: torch.device) -> Rows:
    """Move a batch to the device and derive masks and angles.

    Args:
        packed: the batch; its length must be a multiple of the window.
        lower: decoder starts, see `decoder_starts`.
        arch: the architecture.
        device: where to.
    """

    def move(array: NDArray[np.integer]) -> Tensor:
        return upload(array.astype(np.int64), device)

    length, window = packed.ids.shape[1], arch.sliding_window
    if length % window or length % 2:
        raise ValueError(f"rows of {length} tokens: not an even multiple of the window {window}")
    ids = move(packed.ids)
    documents = move(packed.documents)
    positions = move(packed.positions)
    starts = move(lower)
    weights = upload(packed.weights.view(np.int32), device).view(torch.float32)
    near = _near(documents, window)
    first = _chunks(starts, window).unsqueeze(-1)
    plain, stretched = (freqs.to(device) for freqs in layer_frequencies(arch))
    ratios = sorted({layer.ratio for layer in arch.layers if layer.ratio})
    return Rows(
        ids=ids,
        documents=documents,
        positions=positions,
        kinds=move(packed.kinds),
        weights=_heard(weights, positions, starts),
        lower=starts,
        history=_history(ids, documents, arch),
        near=near,
        near_decoder=near & (_before(positions, window, -1).unsqueeze(1) >= first),
        far={ratio: visible_entries(documents, ratio) for ratio in ratios},
        window=_angles(positions, plain),
        compressed=_angles(positions, stretched),
    )


def _heard(weights: Tensor, positions: Tensor, lower: Tensor) -> Tensor:
    """No weight for targets whose predicting token did not run the decoder layers."""
    return weights * (positions - 1 >= lower)


def _angles(positions: Tensor, freqs: Tensor) -> Rotation:
    angles = positions.flatten().to(torch.float32).unsqueeze(-1) * freqs
    return Rotation(torch.cos(angles), torch.sin(angles))


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[rows, length] -> [rows * chunks, chunk]."""
    return x.reshape(-1, chunk)


def _before(x: Tensor, chunk: int, fill: int) -> Tensor:
    """Each chunk with the one before it: [rows, length] -> [rows * chunks, 2 * chunk]."""
    chunks = x.unflatten(1, (-1, chunk))
    earlier = torch.cat((torch.full_like(chunks[:, :1], fill), chunks[:, :-1]), dim=1)
    return torch.cat((earlier, chunks), dim=2).flatten(0, 1)


def _near(documents: Tensor, window: int) -> Tensor:
    """Own document, at most `window` - 1 tokens back; a row's first chunk has none before it."""
    key, own = _before(documents, window, -2), _chunks(documents, window)
    slot = torch.arange(2 * window, device=documents.device)
    back = slot[window:, None] - slot
    return (key.unsqueeze(1) == own.unsqueeze(2)) & (back >= 0) & (back < window)


def visible_entries(documents: Tensor, ratio: int) -> Tensor:
    """Which entries a token may see: complete ones of its document, [rows, length, entries]."""
    last = torch.arange(ratio - 1, documents.shape[1], ratio, device=documents.device)
    row = torch.arange(documents.shape[1], device=documents.device).unsqueeze(-1)
    return (documents[:, last].unsqueeze(1) == documents.unsqueeze(2)) & (last <= row)


def near_keys(keys: Tensor, window: int) -> Tensor:
    """[rows, length, dim] -> [rows * chunks, 2 * window, dim], each chunk with the one before."""
    chunks = keys.unflatten(1, (-1, window))
    earlier = torch.cat((torch.zeros_like(chunks[:, :1]), chunks[:, :-1]), dim=1)
    return torch.cat((earlier, chunks), dim=2).flatten(0, 1)


def _history(ids: Tensor, documents: Tensor, arch: Arch) -> Tensor:
    count = 1 if arch.engram is None else arch.engram.max_ngram_size
    found = [ids]
    for back in range(1, count):
        shifted = torch.full_like(ids, -1)
        same = documents[:, back:] == documents[:, :-back]
        shifted[:, back:] = torch.where(same, ids[:, :-back], -1)
        found.append(shifted)
    return torch.stack(found, -1).flatten(0, 1)
