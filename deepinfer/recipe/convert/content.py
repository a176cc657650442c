"""Texts and images of one message, put together as its content.

It does not know how protocols write their parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deepinfer.recipe.conversation import (
    ImageSource,
    Message,
    SystemMessage,
    Task,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.options import ModelVersion

PART_SEPARATOR = "\n\n"
# What stands in prompts of V4 for an image, whatever it is.
UNSUPPORTED_IMAGE = "[Unsupported Image]"


@dataclass(frozen=True, slots=True)
class Content:
    """A text with images: `places` are the half-open ranges of `text` that stand for them."""

    text: str
    sources: tuple[ImageSource, ...] = ()
    places: tuple[tuple[int, int], ...] = ()

    def as_user(self, task: Task | None = None) -> Message:
        """The content as what a user says, with a quick instruction if there is one."""
        return UserMessage(self.text, self.sources, placeholders=self.places, task=task)

    def as_tool(self, call_id: str | None) -> Message:
        """The content as the result of a call."""
        return ToolMessage(self.text, call_id, self.sources, placeholders=self.places)

    def as_system(self, tools: list[ToolDefinition] | None = None) -> Message:
        """The content as instructions, which may bring tools."""
        return SystemMessage(self.text, self.sources, tools, placeholders=self.places)


def sees_images(version: ModelVersion) -> bool:
    """Whether the model can be shown images."""
    return version is ModelVersion.DeepseekV41Flash


def joined(parts: Iterable[str | ImageSource], image_token: str) -> Content:
    """Join parts by an empty line, with `image_token` for every image."""
    texts: list[str] = []
    sources: list[ImageSource] = []
    places: list[tuple[int, int]] = []
    end = 0
    for part in parts:
        start = end + len(PART_SEPARATOR) if texts else 0
        if isinstance(part, ImageSource):
            text = image_token
            sources.append(part)
            places.append((start, start + len(text)))
        else:
            text = part
        texts.append(text)
        end = start + len(text)
    return Content(PART_SEPARATOR.join(texts), tuple(sources), tuple(places))
