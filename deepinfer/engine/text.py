"""The text of one completion: generated ids in, new text out, up to a stop string.

It owns the answer so far. It does not know end tokens or length limits: the engine core does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deepinfer.engine.detokenize import Detokenizer, TokenBytes
from deepinfer.engine.stops import StopStrings
from deepinfer.request import SamplingParams


class TextDelta(NamedTuple):
    """What one step adds to a completion.

    Attributes:
        text: new text; all deltas together are the whole text.
        stop: the stop string that ended it, None while there was none.
        kept: how many of the pushed ids belong to the answer: all, or those up to the one that
            completed the stop string.
    """

    text: str
    stop: str | None
    kept: int


class OutputText:
    """Collects one completion.

    Args:
        tokens: bytes of the tokenizer's tokens.
        params: its stop strings, and which parts of the text are left out.
        prompt_ids: what the completion follows.

    Attributes:
        token_ids: ids of the answer so far; the token that completed a stop string is the last.
        stop: the stop string that ended it, None while there was none.
    """

    def __init__(self, tokens: TokenBytes, params: SamplingParams, prompt_ids: Sequence[int] = ()):
        self.token_ids: list[int] = []
        self.stop: str | None = None
        self._deltas: list[str] = []
        self._detokenizer = Detokenizer(
            tokens, skip_special_tokens=params.skip_special_tokens, prompt_ids=prompt_ids
        )
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)

    @property
    def text(self) -> str:
        """All text released so far (joined on each call)."""
        return "".join(self._deltas)

    def push(self, ids: Sequence[int], *, ended: bool = False) -> TextDelta:
        """Take the ids of one step; after a stop string they are dropped.

        Args:
            ids: generated ids.
            ended: the last of them is an end or stop id, which is kept but has no text.

        Raises:
            ValueError: an id is outside the model's vocabulary.
        """
        released: list[str] = []
        kept = 0
        for place, token_id in enumerate(ids):
            if self.stop is not None:
                break
            silent = ended and place == len(ids) - 1
            if not silent:  # one by one, to know the token that completes a stop string
                text, self.stop = self._stops.push(self._detokenizer.push((token_id,)))
                released.append(text)
            kept += 1
        self.token_ids += ids[:kept]
        return self._delta("".join(released), kept)

    def finish(self) -> TextDelta:
        """Release what was held back; called once, when no more ids come.

        An incomplete character becomes U+FFFD here, which may complete a stop string.
        """
        text, self.stop = self._stops.push(self._detokenizer.finish())
        return self._delta(text + self._stops.finish(), 0)

    def _delta(self, text: str, kept: int) -> TextDelta:
        if text:
            self._deltas.append(text)
        return TextDelta(text, self.stop, kept)
