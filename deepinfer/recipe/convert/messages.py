"""Messages requests to conversations (recipe.md 4.11).

It does not know how answers become events of this protocol; `events` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer.recipe.conversation import Message
from deepinfer.recipe.convert import sampling
from deepinfer.recipe.convert.assemble import Parts, assemble
from deepinfer.recipe.convert.body import ProtocolRequest, RequestBody
from deepinfer.recipe.convert.messages_body import (
    WEB_SEARCH,
    ClientTool,
    MessagesBody,
    ServerTool,
    read_messages,
)
from deepinfer.recipe.convert.messages_history import History
from deepinfer.recipe.convert.thinking import resolve_thinking, settle_reasoning
from deepinfer.recipe.convert.tools import (
    DeclaredTool,
    NamedTool,
    Wish,
    check_name,
    keep_known_tools,
    resolve_tools,
)
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.options import (
    ConversationRequest,
    ConversionOptions,
    ModelVersion,
    WebSearchBehavior,
)

if TYPE_CHECKING:
    from deepinfer.recipe.events.messages import MessagesChunkGenerator


class MessagesRequest(ProtocolRequest[MessagesBody]):
    """A Messages request. Conversion uses it up, also when it fails.

    Args:
        body: JSON text, or the value of one.

    Raises:
        BodyError: no JSON, or not the shape of the protocol.
        TypeError, ValueError, OverflowError: a dictionary holds what JSON cannot.
    """

    __slots__ = ()

    def __init__(self, body: RequestBody) -> None:
        super().__init__(body, read_messages)

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """Make a conversation of the request.

        Raises:
            ConversionError: the request asks for what cannot be.
            RuntimeError: it was converted before.
        """
        return _convert(self._take(), options)

    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> MessagesChunkGenerator:
        """What makes events of this protocol from an answer to `request`."""
        from deepinfer.recipe.events.messages import MessagesChunkGenerator

        return MessagesChunkGenerator(id, model, request.conversation.thinking_mode)


def _convert(body: MessagesBody, options: ConversionOptions) -> ConversationRequest:
    version = sampling.model_version(body.model, options)
    declared = _declare(body.tools or [], version, options.messages_web_search)
    if not body.messages:
        raise ConversionError("messages: at least one message is required", "messages")
    thinking, effort = resolve_thinking(body.thinking, body.effort, options.default_thinking_mode)
    messages = settle_reasoning(
        _history(body, declared, version, options),
        thinking,
        bool(body.tools),
        options.reasoning_content_behavior,
        "content[].thinking",
    )
    tool_set = resolve_tools(declared, _wish(body), thinking, any_given=bool(body.tools))
    stops = body.stop_sequences or []
    sampling.check_stops(stops, "stop")
    parts = Parts(
        messages=keep_known_tools(messages, tool_set),
        tool_set=tool_set,
        thinking=thinking,
        effort=effort,
        version=version,
        temperature=sampling.temperature(body.temperature, thinking),
        top_p=sampling.top_p(body.top_p, version, thinking, bool(tool_set.tools)),
        max_tokens=sampling.max_tokens(body.max_tokens, options, thinking, lower=True),
        stops=stops,
        stream=body.stream is True,
    )
    return assemble(parts, options)


def _declare(
    tools: Sequence[ClientTool | ServerTool], version: ModelVersion, web_search: WebSearchBehavior
) -> list[DeclaredTool]:
    declared: list[DeclaredTool] = []
    for i, tool in enumerate(tools):
        path = f"tools[{i}]"
        if isinstance(tool, ServerTool):
            droppable = tool.type.startswith(WEB_SEARCH)
            if not droppable or web_search is WebSearchBehavior.Reject:
                raise ConversionError(f"{path}: server tools are not supported", path)
            continue
        check_name(tool.name, f"{path}.name")
        declared.append(
            DeclaredTool(
                tool.name,
                tool.description,
                tool.input_schema,
                f"{path}.input_schema",
                deferred=tool.deferred and version is ModelVersion.DeepseekV41Flash,
                parameters_optional=False,
            )
        )
    if declared and all(tool.deferred for tool in declared):
        raise ConversionError(
            "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.",
            "tools",
        )
    return declared


def _wish(body: MessagesBody) -> Wish:
    """The choice; that of a server tool, which is left out, leaves all as it is."""
    wish = body.tool_choice or "auto"
    if isinstance(wish, NamedTool):
        servers = [tool.name for tool in body.tools or [] if isinstance(tool, ServerTool)]
        return "auto" if wish.name in servers else wish
    return wish


def _history(
    body: MessagesBody,
    declared: list[DeclaredTool],
    version: ModelVersion,
    options: ConversionOptions,
) -> list[Message]:
    history = History(declared, version, options)
    if body.system is not None:
        history.system(body.system)
    for i, message in enumerate(body.messages):
        history.add(message, i)
    history.close(len(body.messages))
    return history.messages
