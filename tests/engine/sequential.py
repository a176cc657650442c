"""Serves one request after another: prefill in chunks, then one token a step, greedily.

The plainest engine there is, and the one that others are compared with. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS
from deepinfer.device import Device
from deepinfer.errors import NonFiniteError, RequestError
from deepinfer.model.network import Network
from deepinfer.model.state import State
from deepinfer.request import FinishReason
from deepinfer.runner.assemble import RowSlice, assemble

_SLOT = 1  # slot 0 is reserved


class Sequential:
    """A network with room for one request.

    Args:
        network: loaded weights.
        device: where it runs.
        max_model_len: most tokens of prompt and output together; None takes the model's own limit.
        chunk: most prompt tokens computed at once.
        decoder_keep: prompt rows that run the decoder layers (bounded replay); None runs all rows
            through all layers, which is exact.

    Raises:
        RequestError: `max_model_len` exceeds the model's limit, or `decoder_keep` is too short.
    """

    def __init__(
        self,
        network: Network,
        device: Device,
        *,
        max_model_len: int | None = None,
        chunk: int = 2048,
        decoder_keep: int | None = None,
    ):
        arch = network.arch
        limit = arch.max_position_embeddings
        if max_model_len is not None and not 1 <= max_model_len <= limit:
            raise RequestError(f"max_model_len {max_model_len}: use 1 to {limit} for this model")
        least = arch.sliding_window + arch.max_draft + 1
        if decoder_keep is not None and decoder_keep < least:
            raise RequestError(f"decoder_keep {decoder_keep}: this model needs at least {least}")
        if chunk < 1:
            raise RequestError(f"chunk {chunk}: use at least 1 token")
        self.network = network
        self.device = device
        self.max_model_len = max_model_len or limit
        self.chunk = chunk
        self.decoder_keep = decoder_keep
        self._ngram = 1 if arch.engram is None else arch.engram.max_ngram_size
        self._state: State | None = None

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Refuse a prompt that cannot be computed.

        Raises:
            RequestError: it is empty, too long, or holds an id the model has no embedding for or
                the id that marks image positions.
        """
        arch = self.network.arch
        if not ids:
            raise RequestError("the prompt is empty; give at least one token")
        if len(ids) > self.max_model_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, the limit is {self.max_model_len}; shorten it"
            )
        for place, token in enumerate(ids):
            if not 0 <= token < arch.vocab_size:
                raise RequestError(
                    f"token {token} at position {place} is not between 0 and {arch.vocab_size - 1}"
                )
            if token == arch.image_token_id:
                raise RequestError(
                    f"token {token} at position {place} marks an image; this engine reads text only"
                )

    def generate(self, ids: Sequence[int], max_tokens: int) -> tuple[list[int], FinishReason]:
        """Continue a prompt with the likeliest token each time (ties: lowest id).

        Args:
            ids: prompt.
            max_tokens: most tokens to generate, >= 1.

        Returns:
            generated ids (an end token included) and why they end.

        Raises:
            RequestError: see `check_prompt`, or `max_tokens` is out of range.
            NonFiniteError: the logits are not finite.
        """
        self.check_prompt(ids)
        if max_tokens < 1:
            raise RequestError(f"max_tokens {max_tokens}: use at least 1")
        room = min(max_tokens, self.max_model_len - len(ids))
        if room < 1:
            raise RequestError(f"the prompt fills the limit of {self.max_model_len} tokens")
        known = list(ids)
        keep = self.decoder_keep
        start = 0 if keep is None else max(len(ids) - keep, 0)
        state = self._room_for(len(ids) + room)
        hidden = self._prefill(known, state, start)[-1:]
        while True:
            token = int(self._logits(hidden, len(known)).argmax(-1))
            known.append(token)
            if token == self.network.arch.eos_token_id:
                return known[len(ids) :], "stop"
            if len(known) - len(ids) == room:
                return known[len(ids) :], "length"
            hidden = self._step(known, len(known) - 1, 1, state, start)

    def score(self, ids: Sequence[int]) -> list[float]:
        """Natural log-probability of every token after the first; all rows run all layers.

        Raises:
            RequestError: see `check_prompt`.
            NonFiniteError: the logits are not finite.
        """
        self.check_prompt(ids)
        state = self._room_for(len(ids))
        known = list(ids)
        scores: list[float] = []
        for first in range(0, len(ids), self.chunk):
            count = min(self.chunk, len(ids) - first)
            hidden = self._step(known, first, count, state, 0)
            following = torch.tensor(known[first + 1 : first + count + 1], device=hidden.device)
            for row in range(0, len(following), 256):  # a bound on the logits held at once
                targets = following[row : row + 256]
                logits = self._logits(hidden[row : row + len(targets)], first + row + 1)
                chosen = torch.log_softmax(logits.double(), -1).gather(1, targets.unsqueeze(1))
                scores += chosen.squeeze(1).tolist()
        return scores

    def _room_for(self, tokens: int) -> State:
        """State with enough pages for one request; it is used again by requests that fit."""
        pages = -(-tokens // PAGE_TOKENS) + 1
        if self._state is None or len(self._state.pages) < pages:
            self._state = State.allocate(
                self.network.arch,
                self.network.records,
                pages=pages,
                slots=_SLOT + 1,
                device=self.device.torch,
            )
        return self._state

    def _prefill(self, ids: list[int], state: State, decoder_start: int) -> Tensor:
        hidden: Tensor | None = None
        for first in range(0, len(ids), self.chunk):
            count = min(self.chunk, len(ids) - first)
            hidden = self._step(ids, first, count, state, decoder_start)
        assert hidden is not None, "a checked prompt has a token"
        return hidden

    def _step(
        self, ids: list[int], first: int, count: int, state: State, decoder_start: int
    ) -> Tensor:
        pages = range(1, -(-(first + count) // PAGE_TOKENS) + 1)
        row = RowSlice(ids, first, count, _SLOT, pages, decoder_start)
        step = assemble([row], self._ngram, self.device.torch)
        return self.network.forward(step.history, step.batch, state, step.tail).hidden

    def _logits(self, hidden: Tensor, position: int) -> Tensor:
        logits = self.network.logits(hidden)
        if not bool(torch.isfinite(logits).all()):
            raise NonFiniteError(
                f"logits for position {position} hold NaN or infinity; the weights are damaged, or "
                "an implementation is wrong (compare with every operation set to 'reference')"
            )
        return logits
