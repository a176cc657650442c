"""Chat Completions requests to conversations (recipe.md 2 and 4.2).

It does not know how answers become chunks of this protocol; `events` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from deepinfer.recipe.conversation import (
    AssistantMessage,
    ImageSource,
    LatestReminderMessage,
    Message,
    Task,
    ToolCall,
)
from deepinfer.recipe.convert import images, sampling
from deepinfer.recipe.convert.assemble import Parts, assemble
from deepinfer.recipe.convert.body import ProtocolRequest, RequestBody
from deepinfer.recipe.convert.chat_body import (
    Call,
    ChatBody,
    ChatMessage,
    FilePart,
    ImagePart,
    Part,
    TextPart,
    read_chat,
)
from deepinfer.recipe.convert.content import UNSUPPORTED_IMAGE, Content, joined, sees_images
from deepinfer.recipe.convert.formats import TEXT, AnswerFormat, answer_constraint, says_json
from deepinfer.recipe.convert.thinking import resolve_thinking, settle_reasoning
from deepinfer.recipe.convert.tools import DeclaredTool, check_name, resolve_tools
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.options import (
    ConversationRequest,
    ConversionOptions,
    ModelVersion,
    ThinkingInitialStage,
)
from deepinfer.recipe.special_tokens import SpecialToken

if TYPE_CHECKING:
    from deepinfer.recipe.events.chat import ChatCompletionChunkGenerator


class ChatCompletionRequest(ProtocolRequest[ChatBody]):
    """A Chat Completions request. Conversion uses it up, also when it fails.

    Args:
        body: JSON text, or the value of one.

    Raises:
        BodyError: no JSON, or not the shape of the protocol.
        TypeError, ValueError, OverflowError: a dictionary holds what JSON cannot.
    """

    __slots__ = ()

    def __init__(self, body: RequestBody) -> None:
        super().__init__(body, read_chat)

    def convert(
        self, options: ConversionOptions, *, allow_n: bool = False, allow_tasks: bool = False
    ) -> ConversationRequest:
        """Make a conversation of the request.

        Args:
            options: how.
            allow_n: accept `n` above 1, kept in `inference_options.n`; not in the wheel.
            allow_tasks: read the member `task` of user messages, a quick instruction
                (recipe.md 2.12); not in the wheel, which ignores it.

        Raises:
            ConversionError: the request asks for what cannot be.
            RuntimeError: it was converted before.
        """
        return _convert(self._take(), options, allow_n, allow_tasks)

    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> ChatCompletionChunkGenerator:
        """What makes chunks of this protocol from an answer to `request`."""
        from deepinfer.recipe.events.chat import ChatCompletionChunkGenerator

        stage = request.parsing_options.thinking_initial_stage
        return ChatCompletionChunkGenerator(
            id,
            model,
            request.conversation.thinking_mode,
            starts_in_content=stage is ThinkingInitialStage.ContentContinuation,
            usage_in_every_chunk=request.usage_in_every_chunk,
        )


def _convert(
    body: ChatBody, options: ConversionOptions, allow_n: bool, allow_tasks: bool
) -> ConversationRequest:
    version = sampling.model_version(body.model, options)
    tools = body.tools or []
    for i, tool in enumerate(tools):
        check_name(tool.name, f"tools[{i}].function.name")
    if not body.messages:
        raise ConversionError("Empty input messages", "messages")
    thinking, effort = resolve_thinking(
        body.thinking, body.reasoning_effort, options.default_thinking_mode
    )
    messages = settle_reasoning(
        _messages(body.messages, _Look(version, options, allow_tasks)),
        thinking,
        bool(tools),
        options.reasoning_content_behavior,
        "reasoning_content",
    )
    _check_prefix_place(body.messages)
    wish = body.response_format or TEXT
    _check_json_object(wish, messages)
    tool_set = resolve_tools(_declared(body), body.tool_choice or "auto", thinking)
    if body.messages[-1].prefix:
        _check_prefix(wish, body)
    stops = _stops(body)
    told = body.stream_options
    if told is not None and not body.stream:
        raise ConversionError(
            "stream_options should be set along with stream = true", "stream_options"
        )
    answer = answer_constraint(wish)
    tool_set.check_strictness(body.response_format is not None)
    _check_counts(body, allow_n)
    parts = Parts(
        messages=messages,
        tool_set=tool_set,
        thinking=thinking,
        effort=effort,
        version=version,
        answer_format=wish,
        answer_constraint=answer,
        temperature=sampling.temperature(body.temperature, thinking),
        top_p=sampling.top_p(body.top_p, version, thinking, bool(tool_set.tools)),
        logprobs=_logprobs(body),
        top_logprobs=sampling.top_logprobs(body.top_logprobs),
        max_tokens=sampling.max_tokens(body.max_tokens, options, thinking),
        seed=_seed(body.seed),
        stops=stops,
        stream=body.stream is True,
        usage_in_every_chunk=not body.stream or (told is not None and told.include_usage is True),
        n=1 if body.n is None else body.n,
    )
    return assemble(parts, options)


class _Look:
    """What becomes of parts and tasks: V4 sees words in the place of images."""

    def __init__(self, version: ModelVersion, options: ConversionOptions, allow_tasks: bool):
        self.allow_tasks = allow_tasks
        self.sees = sees_images(version)
        self._token = options.special_tokens.token(SpecialToken.Image)

    def content(self, content: str | list[Part], path: str) -> Content:
        """The content of the message at `path`.

        Raises:
            ConversionError: a part cannot be.
        """
        if isinstance(content, str):
            return Content(content)
        if self.sees and any(isinstance(part, FilePart) for part in content):
            raise ConversionError(f"{path}: file must have a file_id or file_data", path)
        return joined((self._part(part, path) for part in content), self._token)

    def _part(self, part: Part, path: str) -> str | ImageSource:
        if isinstance(part, TextPart):
            return part.text
        if isinstance(part, FilePart) or not self.sees:
            return UNSUPPORTED_IMAGE
        return images.from_any_url(part.url, part.detail, path)


def _messages(messages: list[ChatMessage], look: _Look) -> list[Message]:
    """Messages as the request has them, in an order that answers every call.

    Raises:
        ConversionError: a call has no result or a result has no call, or a message is empty or
            holds what it cannot.
    """
    converted: list[Message] = []
    awaited: set[str] = set()  # ids of calls whose results must come next
    answered: set[str] = set()
    for i, message in enumerate(messages):
        if message.role == "tool":
            _check_result(message, awaited, answered, i)
            answered.add(message.tool_call_id)
            if len(answered) == len(awaited):
                awaited, answered = set(), set()
        elif awaited:
            _lacks_results(i)
        one = _message(message, i, look)
        if one is not None:
            converted.append(one)
        if message.tool_calls is not None:
            awaited = _call_ids(message.tool_calls, i)
    if awaited:
        _lacks_results(len(messages) - 1)
    return converted


def _message(message: ChatMessage, i: int, look: _Look) -> Message | None:
    if message.role == "assistant":
        return _assistant(message, i, look)
    if message.role == "latest_reminder" and isinstance(message.content, str):
        return LatestReminderMessage(message.content)
    content = look.content(message.content or "", f".messages[{i}]")
    if message.role == "system":
        return content.as_system() if content.text else None
    if message.role == "tool":
        return content.as_tool(message.tool_call_id)
    return content.as_user(_task(message, i) if look.allow_tasks else None)


def _task(message: ChatMessage, i: int) -> Task | None:
    task = message.task
    if task is not None and task not in get_args(Task):
        raise ConversionError(
            f"Invalid task {compact(task)}, expected one of {', '.join(get_args(Task))}",
            f"messages[{i}].task",
        )
    return task


def _assistant(message: ChatMessage, i: int, look: _Look) -> Message:
    path = f"messages[{i}]"
    if message.content is None and message.tool_calls is None:
        raise ConversionError("Invalid assistant message: content or tool_calls must be set", path)
    parts = message.content or ""
    has_image = isinstance(parts, list) and any(isinstance(part, ImagePart) for part in parts)
    if has_image and look.sees:
        raise ConversionError("Image in assistant message is not supported", f"{path}.content")
    content = look.content(parts, f".{path}")
    if message.tool_calls is not None and not message.tool_calls:
        raise ConversionError(
            f"Invalid '{path}.tool_calls': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
            f"{path}.tool_calls",
        )
    calls = message.tool_calls
    return AssistantMessage(
        content.text,
        message.reasoning_content,
        None if calls is None else [ToolCall(call.id, call.name, call.arguments) for call in calls],
        message.prefix is True,
    )


def _call_ids(calls: list[Call], i: int) -> set[str]:
    seen: set[str] = set()
    for call in calls:
        if call.id in seen:
            _duplicate(call.id, i)
        seen.add(call.id)
    return seen


def _check_result(message: ChatMessage, awaited: set[str], answered: set[str], i: int) -> None:
    id = message.tool_call_id
    path = f"messages[{i}].tool_call_id"
    if not awaited:
        raise ConversionError(
            "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
            f"messages[{i}]",
        )
    if id in answered:
        _duplicate(id, i)
    if id not in awaited:
        raise ConversionError(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id', The following tool_call_ids did not have response messages: "
            f"{id}",
            path,
        )


def _duplicate(id: str, i: int) -> None:
    raise ConversionError(
        f"Duplicate value for 'tool_call_id' of {id} in message[{i}]", f"messages[{i}]"
    )


def _lacks_results(i: int) -> None:
    raise ConversionError(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. (insufficient tool messages following tool_calls message)",
        f"messages[{i}]",
    )


def _declared(body: ChatBody) -> list[DeclaredTool]:
    return [
        DeclaredTool(
            tool.name,
            tool.description,
            tool.parameters,
            f"tools[{i}].function.parameters",
            tool.strict,
        )
        for i, tool in enumerate(body.tools or [])
    ]


def _check_json_object(wish: AnswerFormat, messages: list[Message]) -> None:
    if wish.kind == "json_object" and not says_json(messages):
        raise ConversionError(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type "
            "'json_object'.",
            "messages",
        )


def _check_prefix_place(messages: list[ChatMessage]) -> None:
    for i, message in enumerate(messages[:-1]):
        if message.prefix:
            raise ConversionError(
                "Invalid completion message: prefix set true with message which is not final "
                "message or message role is not assistant",
                f"messages[{i}].prefix",
            )


def _check_prefix(wish: AnswerFormat, body: ChatBody) -> None:
    if wish.kind == "json_object":
        raise ConversionError(
            "response_format json_object should not be used with prefix", "response_format"
        )
    if body.tools or any(message.tool_calls for message in body.messages):
        raise ConversionError("Function call should not be used with prefix", "tools")


def _stops(body: ChatBody) -> list[str]:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    sampling.check_stops(stops, "stop", single=isinstance(body.stop, str))
    return stops


def _check_counts(body: ChatBody, allow_n: bool) -> None:
    n = 1 if body.n is None else body.n
    if n != 1 and not (allow_n and n > 1):
        raise ConversionError("Invalid n value (currently only n = 1 is supported)", "n")
    sampling.check_range("presence_penalty", body.presence_penalty, -2, 2)
    sampling.check_range("frequency_penalty", body.frequency_penalty, -2, 2)


def _logprobs(body: ChatBody) -> bool:
    if body.top_logprobs is not None and not body.logprobs:
        raise ConversionError(
            "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs "
            "is used.",
            "top_logprobs",
        )
    return body.logprobs is True


def _seed(seed: int | None) -> int | None:
    if seed is not None and seed >= sampling.SEEDS:
        raise ConversionError("Invalid seed value, the valid range of seed is [0, 2^63)", "seed")
    return seed
