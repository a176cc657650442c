"""Responses requests to conversations (recipe.md 4.10).

It does not know how answers become events of this protocol; `events` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.recipe.conversation import Message
from deepinfer.recipe.convert import sampling
from deepinfer.recipe.convert.assemble import Parts, assemble
from deepinfer.recipe.convert.body import ProtocolRequest, RequestBody
from deepinfer.recipe.convert.formats import AnswerFormat, answer_constraint, says_json
from deepinfer.recipe.convert.responses_body import ResponsesBody, read_responses
from deepinfer.recipe.convert.responses_functions import (
    Namer,
    check_web_search,
    name_members,
    repeated,
)
from deepinfer.recipe.convert.responses_history import History
from deepinfer.recipe.convert.thinking import resolve_thinking, settle_reasoning
from deepinfer.recipe.convert.tools import keep_known_tools, resolve_tools
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.options import ConversationRequest, ConversionOptions

if TYPE_CHECKING:
    from deepinfer.recipe.events.echo import ResponsesEcho
    from deepinfer.recipe.events.responses import ResponsesChunkGenerator


class ResponsesRequest(ProtocolRequest[ResponsesBody]):
    """A Responses request. Conversion uses it up, also when it fails.

    Args:
        body: JSON text, or the value of one.

    Raises:
        BodyError: no JSON, or not the shape of the protocol.
        TypeError, ValueError, OverflowError: a dictionary holds what JSON cannot.
    """

    __slots__ = ()

    def __init__(self, body: RequestBody) -> None:
        super().__init__(body, read_responses)

    def namespace_tool_map(self, options: ConversionOptions) -> dict[str, tuple[str, str]]:
        """Function names of the declared tools of namespaces. Read it before conversion.

        Returns:
            Function name to (namespace, local name), as conversion with `options` names them.

        Raises:
            ConversionError: the model is unknown or a declaration cannot be.
        """
        body = self._look()
        tools = body.tools or []
        namer = Namer(sampling.model_version(body.model, options), tools)
        name_members(tools, "tools", namer)
        return namer.names()

    def echo(self) -> ResponsesEcho:
        """The settings that responses report. Read them before conversion."""
        from deepinfer.recipe.events.echo import ResponsesEcho

        return ResponsesEcho(**_echo(self._look()))

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
    ) -> ResponsesChunkGenerator:
        """What makes events of this protocol from an answer to `request`."""
        from deepinfer.recipe.events.echo import ResponsesEcho
        from deepinfer.recipe.events.responses import ResponsesChunkGenerator

        settings = request.responses_settings
        return ResponsesChunkGenerator(
            id,
            model,
            request.conversation.thinking_mode,
            echo=ResponsesEcho(**settings.echo),
            namespace_tool_map=settings.namespace_tool_map,
            custom_tools=settings.custom_tools,
            search_tools=settings.search_tools,
        )


def _echo(body: ResponsesBody) -> dict[str, Any]:
    """The settings that responses repeat, as keywords."""
    reasoning, text = body.reasoning, body.text
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "user": body.user,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "text": {"format": text.repeated, "verbosity": text.verbosity},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice.repeated,
        "tools": tuple(repeated(body.tools or [])),
    }


def _convert(body: ResponsesBody, options: ConversionOptions) -> ConversationRequest:
    version = sampling.model_version(body.model, options)
    history = History(body, version, options)
    declared = history.declare()
    if body.input is None and not body.instructions:
        raise ConversionError("Either input or instructions must be provided", "input")
    if body.input == []:
        raise ConversionError("Input items array must not be empty", "input")
    thinking, effort = resolve_thinking(None, body.reasoning.effort, options.default_thinking_mode)
    history.read()
    messages = settle_reasoning(
        history.messages,
        thinking,
        bool(declared),
        options.reasoning_content_behavior,
        "reasoning_text",
    )
    wish = "auto" if body.tool_choice is None else body.tool_choice.wish
    if wish == "web_search":
        check_web_search(options.responses_web_search, "tool_choice")
        wish = "auto"
    tool_set = resolve_tools(declared, wish, thinking)
    answer_format = body.text.format
    _check_json_object(answer_format, messages)
    answer = answer_constraint(answer_format)
    tool_set.check_strictness(answer_format.kind != "text")
    parts = Parts(
        messages=keep_known_tools(messages, tool_set),
        tool_set=tool_set,
        thinking=thinking,
        effort=effort,
        version=version,
        answer_format=answer_format,
        answer_constraint=answer,
        temperature=sampling.temperature(body.temperature, thinking),
        top_p=sampling.top_p(body.top_p, version, thinking, bool(tool_set.tools)),
        top_logprobs=sampling.top_logprobs(body.top_logprobs),
        logprobs=body.top_logprobs is not None,
        max_tokens=sampling.max_tokens(body.max_output_tokens, options, thinking),
        stream=body.stream is True,
        responses_settings=history.settings(_echo(body)),
    )
    return assemble(parts, options)


def _check_json_object(wish: AnswerFormat, messages: list[Message]) -> None:
    if wish.kind == "json_object" and not says_json(messages):
        raise ConversionError(
            "Response input messages must contain the word 'json' in some form to use "
            "'text.format' of type 'json_object'.",
            "input",
        )
