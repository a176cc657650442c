"""The codec between API requests, prompts and answers; see `docs/recipe.md`.

It knows neither torch nor the engine. Names are those of the published package `deepseek_recipe`,
so that code moves by changing one import.
"""

from deepinfer.recipe.completion import CompletionPrompt, CompletionRequest
from deepinfer.recipe.conversation import (
    AssistantMessage,
    BytesImageSource,
    Conversation,
    DataUrlImageSource,
    ImageSource,
    LatestReminderMessage,
    Message,
    RenderedPrompt,
    SpecialToken,
    SpecialTokens,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImageSource,
    UserMessage,
)
from deepinfer.recipe.convert.chat import (
    ChatCompletionRequest,
)
from deepinfer.recipe.convert.messages import (
    MessagesRequest,
)
from deepinfer.recipe.convert.responses import (
    ResponsesRequest,
)
from deepinfer.recipe.encode import (
    DeepseekV4Encoding,
    DeepseekV41Encoding,
)
from deepinfer.recipe.events import (
    ChatCompletionChunk,
    ChatCompletionChunkGenerator,
    ChatCompletionResponse,
    MessagesChunkGenerator,
    MessagesResponse,
    MessagesStreamEvent,
    ResponsesChunkGenerator,
    ResponsesEcho,
    ResponsesResponse,
    ResponsesStreamEvent,
)
from deepinfer.recipe.failures import (
    ConversionError,
)
from deepinfer.recipe.image_data import CalcResizeError, ImageError
from deepinfer.recipe.image_fetch import ReqwestImageFetcher
from deepinfer.recipe.images import (
    ImageInfo,
    ImageQuota,
    ImageResolver,
    MultiModalData,
    OpenCvImagePreprocessor,
    PreprocessOptions,
)
from deepinfer.recipe.inference import (
    InferenceChunk,
    InferenceFinishReason,
    PromptUsage,
)
from deepinfer.recipe.options import (
    ConversationRequest,
    ConversionOptions,
    InferenceOptions,
    ModelVersion,
    OutputConstraint,
    ParsingOptions,
    ReasoningContentBehavior,
    ThinkingInitialStage,
    WebSearchBehavior,
)
from deepinfer.recipe.stream import (
    StreamProcessor,
)
from deepinfer.recipe.tokens import (
    IMAGE_SPECIAL_TOKEN_ID,
    Tokenizer,
)

__all__ = [
    "IMAGE_SPECIAL_TOKEN_ID",
    "AssistantMessage",
    "BytesImageSource",
    "CalcResizeError",
    "ChatCompletionChunk",
    "ChatCompletionChunkGenerator",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "CompletionPrompt",
    "CompletionRequest",
    "Conversation",
    "ConversationRequest",
    "ConversionError",
    "ConversionOptions",
    "DataUrlImageSource",
    "DeepseekV4Encoding",
    "DeepseekV41Encoding",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "ImageSource",
    "InferenceChunk",
    "InferenceFinishReason",
    "InferenceOptions",
    "LatestReminderMessage",
    "Message",
    "MessagesChunkGenerator",
    "MessagesRequest",
    "MessagesResponse",
    "MessagesStreamEvent",
    "ModelVersion",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "OutputConstraint",
    "ParsingOptions",
    "PreprocessOptions",
    "PromptUsage",
    "ReasoningContentBehavior",
    "RenderedPrompt",
    "ReqwestImageFetcher",
    "ResponsesChunkGenerator",
    "ResponsesEcho",
    "ResponsesRequest",
    "ResponsesResponse",
    "ResponsesStreamEvent",
    "SpecialToken",
    "SpecialTokens",
    "StreamProcessor",
    "SystemMessage",
    "ThinkingInitialStage",
    "Tokenizer",
    "ToolCall",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
    "WebSearchBehavior",
]
