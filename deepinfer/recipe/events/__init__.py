"""Events and complete responses of the three protocols."""

from deepinfer.recipe.events.chat import (
    ChatCompletionChunk,
    ChatCompletionChunkGenerator,
    ChatCompletionResponse,
)
from deepinfer.recipe.events.echo import ResponsesEcho
from deepinfer.recipe.events.messages import (
    MessagesChunkGenerator,
    MessagesResponse,
    MessagesStreamEvent,
)
from deepinfer.recipe.events.responses import (
    ResponsesChunkGenerator,
    ResponsesResponse,
    ResponsesStreamEvent,
)
from deepinfer.recipe.events.sse import sse_comment, sse_done, sse_frame

__all__ = [
    "ChatCompletionChunk",
    "ChatCompletionChunkGenerator",
    "ChatCompletionResponse",
    "MessagesChunkGenerator",
    "MessagesResponse",
    "MessagesStreamEvent",
    "ResponsesChunkGenerator",
    "ResponsesEcho",
    "ResponsesResponse",
    "ResponsesStreamEvent",
    "sse_comment",
    "sse_done",
    "sse_frame",
]
