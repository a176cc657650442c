"""The messages of a Messages request, block by block, as messages of a conversation.

It does not know the other wishes of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from deepinfer.recipe.conversation import (
    AssistantMessage,
    ImageSource,
    Message,
    ToolCall,
    ToolDefinition,
    UserMessage,
)
from deepinfer.recipe.convert import images
from deepinfer.recipe.convert.content import PART_SEPARATOR, UNSUPPORTED_IMAGE, Content, joined
from deepinfer.recipe.convert.messages_body import (
    Base64Image,
    Block,
    DocumentBlock,
    ImageBlock,
    MessagesMessage,
    ReferenceBlock,
    ResultPart,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlImage,
)
from deepinfer.recipe.convert.tools import DeclaredTool
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.options import ConversionOptions, ModelVersion, WebSearchBehavior
from deepinfer.recipe.special_tokens import SpecialToken

# V4 has no system messages within a conversation; a user tells it.
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"


class History:
    """Turns messages of blocks into messages, and sees that every tool use has its result.

    Args:
        declared: the tools that may be referred to.
        version: V4 sees no images, has no system messages but the first, and learns of no tools
            on the way.
        options: spelling of the image token, and what to do about web search.
    """

    def __init__(
        self, declared: list[DeclaredTool], version: ModelVersion, options: ConversionOptions
    ):
        self.messages: list[Message] = []
        self._tools = {tool.name for tool in declared}
        self._v41 = version is ModelVersion.DeepseekV41Flash
        self._token = options.special_tokens.token(SpecialToken.Image)
        self._drops_server_tools = options.messages_web_search is WebSearchBehavior.Drop
        # Ids of the message before, whose results must come now; a dictionary keeps their order.
        self._uses: dict[str, None] = {}
        self._results: set[str] = set()

    def system(self, system: str | list[TextBlock]) -> None:
        """Begin with the instructions of the request."""
        texts = [system] if isinstance(system, str) else [block.text for block in system]
        self.messages.append(Content(PART_SEPARATOR.join(texts)).as_system())

    def add(self, message: MessagesMessage, i: int) -> None:
        """Add message `i`.

        Raises:
            ConversionError: it holds what it cannot, or tool uses and results do not match.
        """
        path = f"messages.{i}"
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [TextBlock(blocks)]
        if message.role != "user":
            self._check_answered(path)
        if not blocks and message.role != "system":
            raise ConversionError(f"{path}: all messages must have non-empty content", path)
        if message.role == "user":
            self._user(blocks, path)
            self.close(i)
        elif message.role == "assistant":
            self._assistant(blocks, path)
        else:
            self._system(blocks, path)

    def close(self, i: int) -> None:
        """See that the tool uses before message `i` all have their results.

        Raises:
            ConversionError: one has none.
        """
        missing = self._missing()
        if missing:
            _lacks_results(f"messages.{i - 1}:", missing, f"messages[{i - 1}]")
        self._uses, self._results = {}, set()

    def _missing(self) -> list[str]:
        return [id for id in self._uses if id not in self._results]

    def _check_answered(self, path: str) -> None:
        if len(self._results) < len(self._uses):
            _lacks_results(f"{path}: ", self._missing(), path)

    def _user(self, blocks: Sequence[Block], path: str) -> None:
        references: list[ToolDefinition] = []
        for j, block in enumerate(blocks):
            place = f"{path}.content.{j}"
            if isinstance(block, ToolResultBlock):
                self._result(block, place, references)
            elif isinstance(block, TextBlock | ImageBlock | DocumentBlock):
                self._check_answered(path)
                where = f"{path}.content[{j}]"
                part = self._part(block, where, where)
                self.messages.append(joined([part], self._token).as_user())
            else:
                _misplaced(block, path)
        if references and self._v41:
            self.messages.append(Content("").as_system(references))

    def _result(self, block: ToolResultBlock, place: str, references: list[ToolDefinition]) -> None:
        id = block.tool_use_id
        if id not in self._uses:
            raise ConversionError(
                f"unexpected `{place}: tool_use_id` found in `tool_result` blocks: {id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous "
                "message.",
                place,
            )
        if id in self._results:
            raise ConversionError(
                f"{place}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {id}",
                place,
            )
        self._results.add(id)
        content = block.content or ""
        parts = [content] if isinstance(content, str) else self._parts(content, place, references)
        self.messages.append(joined(parts, self._token).as_tool(id))

    def _parts(
        self, content: list[ResultPart], place: str, references: list[ToolDefinition]
    ) -> list[str | ImageSource]:
        for part in content:
            if isinstance(part, ReferenceBlock):
                if part.name not in self._tools:
                    raise ConversionError(
                        f"{place}: tool reference '{part.name}' not found in available tools", place
                    )
                references.append(ToolDefinition(part.name))
        where = f"{place}.tool_result"
        return [
            part.name
            if isinstance(part, ReferenceBlock)
            else self._part(part, f"{where}.content[{k}]", where)
            for k, part in enumerate(content)
        ]

    def _assistant(self, blocks: Sequence[Block], path: str) -> None:
        text = ""
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        ids: set[str] = set()
        for j, block in enumerate(blocks):
            if isinstance(block, TextBlock | ImageBlock | DocumentBlock):
                if calls:
                    _lacks_results(f"{path}.{j}: ", [call.id for call in calls], path)
                where = f"{path}.content[{j}]"
                part = self._part(block, where, where)
                if isinstance(part, ImageSource):
                    raise ConversionError("Image in assistant message is unsupported", where)
                text = f"{text}{PART_SEPARATOR}{part}" if text else part
            elif isinstance(block, ThinkingBlock):
                thoughts.append(block.thinking)
            elif isinstance(block, ToolUseBlock):
                if block.id in ids:
                    place = f"{path}.content.{j}"
                    raise ConversionError(f"{place}: `tool_use` ids must be unique", place)
                ids.add(block.id)
                calls.append(ToolCall(block.id, block.name, block.arguments))
            elif isinstance(block, ServerToolBlock):
                self._server_tool(path)
            elif isinstance(block, ToolResultBlock):
                _only_in(path, "tool_result", "user")
            else:
                _only_in(path, "tool_addition", "system")
        reasoning = PART_SEPARATOR.join(thoughts) if thoughts else None
        self.messages.append(AssistantMessage(text, reasoning, calls or None))
        self._uses = dict.fromkeys(call.id for call in calls)

    def _system(self, blocks: Sequence[Block], path: str) -> None:
        parts: list[str | ImageSource] = []
        added: list[ToolDefinition] = []
        for j, block in enumerate(blocks):
            if isinstance(block, TextBlock | ImageBlock | DocumentBlock):
                parts.append(self._part(block, f"{path}.content[{j}]", path))
            elif isinstance(block, ToolAdditionBlock):
                if block.name not in self._tools:
                    place = f"{path}.content.{j}"
                    raise ConversionError(
                        f"{place}: `tool_addition` references unknown tool '{block.name}'", place
                    )
                added.append(ToolDefinition(block.name))
            elif isinstance(block, ToolResultBlock):
                _only_in(path, "tool_result", "user")
            else:
                _misplaced(block, path)
        content = joined(parts, self._token)
        if self._v41:
            self.messages.append(content.as_system(added or None))
        elif content.text:
            self.messages.append(UserMessage(_REMINDER.format(content.text)))

    def _part(
        self, block: TextBlock | ImageBlock | DocumentBlock, place: str, path: str
    ) -> str | ImageSource:
        """A block as text or image; errors name `place`, an image keeps `path`."""
        if isinstance(block, TextBlock):
            return block.text
        if isinstance(block, DocumentBlock):
            named = "unknown" if block.media_type is None else block.media_type
            return f"[Unsupported document type: {named}]"
        if not self._v41:
            return UNSUPPORTED_IMAGE
        source = block.source
        if isinstance(source, Base64Image):
            return images.from_base64(source.data, source.media_type, place, path)
        if isinstance(source, UrlImage):
            return images.from_fetched_url(source.url, place, path)
        raise ConversionError(f"{place}: {images.FILE_ID_UNSUPPORTED}", place)

    def _server_tool(self, path: str) -> None:
        if not self._drops_server_tools:
            raise ConversionError("Unsupported content block: server tools are not supported", path)


def _misplaced(
    block: ThinkingBlock | ToolUseBlock | ServerToolBlock | ToolAdditionBlock, path: str
) -> NoReturn:
    """Refuse a block that this message cannot hold."""
    if isinstance(block, ThinkingBlock):
        raise ConversionError(
            f"{path}.content: thinking blocks may only be in `assistant` messages", path
        )
    if isinstance(block, ToolAdditionBlock):
        _only_in(path, "tool_addition", "system")
    if isinstance(block, ServerToolBlock) and not block.is_use:
        _only_in(path, "web_search_tool_result", "assistant")
    _only_in(path, "tool_use", "assistant")


def _only_in(path: str, kind: str, role: str) -> NoReturn:
    raise ConversionError(f"{path}: `{kind}` blocks can only be in `{role}` messages", path)


def _lacks_results(prefix: str, ids: Iterable[str], path: str) -> NoReturn:
    raise ConversionError(
        f"{prefix}`tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(sorted(ids))}. Each `tool_use` block must have a corresponding `tool_result` "
        "block in the next message.",
        path,
    )
