"""Where requests enter: prompts of every form and sampling values become checked core requests.

Everything a caller or user can get wrong is refused here, with the value and the remedy. Knows
nothing of schedules and devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NotRequired, TypedDict, cast

from deepinfer.arch import Arch
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import RequestError
from deepinfer.request import Request, SamplingParams


class TextPrompt(TypedDict):
    """A prompt as text; cached prefixes are shared only among prompts of one `cache_salt`."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as ids; `cache_salt` as above."""

    prompt_token_ids: Sequence[int]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
"""Text, token ids, or one of them under vLLM's key."""


class ParsedPrompt(NamedTuple):
    """`text` is None for a prompt of ids; `salt` is its `cache_salt` as bytes."""

    text: str | None
    ids: tuple[int, ...]
    salt: bytes = b""


class Border:
    """Checks prompts and parameters against one model.

    Args:
        arch: the architecture.
        tokenizer: text border, or None for a model without `tokenizer.json`.
        max_model_len: most tokens of prompt and output.
        max_logprobs: most log-probability entries a token.
    """

    def __init__(
        self,
        arch: Arch,
        tokenizer: TextTokenizer | None,
        max_model_len: int,
        max_logprobs: int = 20,
    ):
        self.arch = arch
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.max_logprobs = max_logprobs

    def parse(self, prompt: Prompt) -> ParsedPrompt:
        """Ids of a prompt, checked.

        Raises:
            RequestError: it has another form, is empty, holds an id the model has no embedding
                for or the id of image positions, or leaves no room for a token.
        """
        unsalted, salt = _without_salt(prompt)
        text, ids = self._split(unsalted)
        if not ids:
            raise RequestError("the prompt is empty; give at least one token")
        for place, token in enumerate(ids):
            if not 0 <= token < self.arch.vocab_size:
                raise RequestError(
                    f"token {token} at position {place} is not between 0 and "
                    f"{self.arch.vocab_size - 1}"
                )
            if token == self.arch.image_token_id:
                raise RequestError(
                    f"token {token} at position {place} marks an image; this engine reads text only"
                )
        if len(ids) >= self.max_model_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; with max_model_len {self.max_model_len} at "
                f"most {self.max_model_len - 1} leave room for an answer"
            )
        return ParsedPrompt(text, ids, salt)

    def _split(self, prompt: object) -> tuple[str | None, tuple[int, ...]]:
        if isinstance(prompt, Mapping):
            fields = cast("Mapping[str, object]", prompt)
            if set(fields) == {"prompt"}:
                prompt = fields["prompt"]
            elif set(fields) == {"prompt_token_ids"}:
                prompt = fields["prompt_token_ids"]
            else:
                raise RequestError(
                    f"a prompt of keys {sorted(fields)}: give exactly one of 'prompt' and "
                    "'prompt_token_ids'"
                )
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("this model has no tokenizer.json; give token ids")
            return prompt, tuple(self.tokenizer.encode(prompt))
        if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
            ids = cast("Sequence[object]", prompt)
            if all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                return None, tuple(cast("Sequence[int]", ids))
            raise RequestError("a prompt of ids holds something that is no integer")
        raise RequestError(f"a prompt of type {type(prompt).__name__}: use text or token ids")

    def check_params(self, params: SamplingParams) -> None:
        """Check sampling values against the model.

        Raises:
            RequestError: an id is not in the vocabulary, more log-probabilities are wanted than
                allowed, or text is needed and there is no tokenizer.
        """
        vocab = self.arch.vocab_size
        named = {
            "stop_token_ids": params.stop_token_ids or (),
            "allowed_token_ids": params.allowed_token_ids or (),
            "logit_bias": tuple(params.logit_bias or ()),
            "forced_token_ids": params.forced_token_ids or (),
        }
        for name, ids in named.items():
            for token in ids:
                if token >= vocab:
                    raise RequestError(
                        f"{name}: token {token} is not below the {vocab} of the model"
                    )
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(params, name)
            if wanted is not None and wanted > self.max_logprobs:
                raise RequestError(
                    f"{name} {wanted}: at most {self.max_logprobs} (max_logprobs), or -1 for all"
                )
        if self.tokenizer is None and (params.stop or params.bad_words):
            raise RequestError("stop strings and bad_words need a model with tokenizer.json")
        if params.stop and not params.detokenize:
            raise RequestError("stop strings are found in text: leave detokenize on")

    def requests(
        self,
        request_id: str,
        ids: tuple[int, ...],
        params: SamplingParams,
        *,
        seed: int,
        priority: int = 0,
        arrival: float = 0.0,
        cache_salt: bytes = b"",
        constrained: bool = False,
    ) -> list[Request]:
        """The `n` core requests of one checked prompt.

        Args:
            request_id: name; the k-th of several is named `request_id/k`.
            ids: checked prompt.
            params: checked values.
            seed: used if `params.seed` is None.
            priority: smaller goes first.
            arrival: seconds on the engine's clock.
            cache_salt: of the prompt.
            constrained: masks say which tokens may come.
        """
        self.check_params(params)
        bad_words = self._bad_words(params)
        key = seed if params.seed is None else params.seed
        single = dataclasses.replace(
            params,
            n=1,
            logprobs=self._entries(params.logprobs),
            prompt_logprobs=self._entries(params.prompt_logprobs),
        )
        end = () if params.ignore_eos else (self.arch.eos_token_id,)
        return [
            Request(
                request_id=request_id if params.n == 1 else f"{request_id}/{sample}",
                prompt_token_ids=ids,
                params=single,
                seed=key % (1 << 64),
                sample=sample,
                priority=priority,
                arrival=arrival,
                stop_ids=frozenset((*end, *(params.stop_token_ids or ()))),
                bad_words=bad_words,
                cache_salt=cache_salt,
                constrained=constrained,
            )
            for sample in range(params.n)
        ]

    def _entries(self, wanted: int | None) -> int | None:
        """-1 is the whole vocabulary, as far as the limit goes."""
        return min(self.arch.vocab_size, self.max_logprobs) if wanted == -1 else wanted

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Token sequences of the bad words, at the start of a text and after a space."""
        if not params.bad_words:
            return ()
        assert self.tokenizer is not None, "checked with the parameters"
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            for form in (word, " " + word.lstrip()):
                ids = tuple(self.tokenizer.encode(form))
                if ids:
                    found[ids] = None
        return tuple(found)


def _without_salt(prompt: object) -> tuple[object, bytes]:
    """The prompt without its `cache_salt`, and that as bytes."""
    if not isinstance(prompt, Mapping) or "cache_salt" not in prompt:
        return cast("object", prompt), b""
    fields = cast("Mapping[str, object]", prompt)
    salt = fields["cache_salt"]
    if not isinstance(salt, str) or not salt:
        raise RequestError(f"cache_salt {salt!r}: use a text that is not empty")
    return {k: v for k, v in fields.items() if k != "cache_salt"}, salt.encode(errors="replace")
