"""Conversations as plain data: what constructors accept, keep and refuse, beside the wheel."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer import recipe
from deepinfer.recipe import (
    AssistantMessage,
    BytesImageSource,
    Conversation,
    DataUrlImageSource,
    ImageSource,
    Message,
    SpecialToken,
    SpecialTokens,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImageSource,
    UserMessage,
)
from tests.recipe.conversations import CONVERSATIONS, JSON, build
from tests.recipe.oracle import outcome, wheel

HALF = "\ud800"  # of a surrogate pair
IMAGE = BytesImageSource(b"x")

# Arguments that somebody could mean, right and wrong; both modules must accept and refuse the same.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("ToolCall", ("a", "b", "c"), {}),
    ("ToolCall", ("a", "b"), {}),
    ("ToolCall", (1, "b", "c"), {}),
    ("ToolCall", ("a", HALF, "c"), {}),
    ("ToolDefinition", ("n",), {}),
    ("ToolDefinition", ("n", None, {"a": (1, 2)}, True, True), {}),
    ("ToolDefinition", ("n",), {"parameters": {"a": float("nan")}}),
    ("ToolDefinition", ("n",), {"parameters": float("inf")}),
    ("ToolDefinition", ("n",), {"parameters": {1: 2}}),
    ("ToolDefinition", ("n",), {"parameters": {1, 2}}),
    ("ToolDefinition", ("n",), {"parameters": b"x"}),
    ("ToolDefinition", ("n",), {"parameters": 2**64 - 1}),
    ("ToolDefinition", ("n",), {"parameters": 2**64}),
    ("ToolDefinition", ("n",), {"parameters": -(2**63)}),
    ("ToolDefinition", ("n",), {"parameters": -(2**63) - 1}),
    ("ToolDefinition", ("n",), {"parameters": HALF}),
    ("ToolDefinition", ("n",), {"parameters": {HALF: 1}}),
    ("ToolDefinition", ("n",), {"strict": 1}),
    ("ToolDefinition", ("n",), {"defer_loading": 0}),
    ("ImageSource", (), {}),
    ("DataUrlImageSource", ("u", "low"), {"path": "p"}),
    ("UrlImageSource", ("u", "tiny"), {}),
    ("UrlImageSource", (b"u",), {}),
    ("BytesImageSource", (b"u", "original"), {}),
    ("BytesImageSource", (bytearray(b"u"),), {}),
    ("BytesImageSource", ("u",), {}),
    ("Message", (), {}),
    ("UserMessage", ("x",), {"image_token": ""}),
    ("UserMessage", (None,), {}),
    ("UserMessage", ("x", [1]), {}),
    ("UserMessage", (HALF,), {}),
    ("SystemMessage", ("x",), {"tools": [1]}),
    ("AssistantMessage", ("x", None, [], False), {}),
    ("AssistantMessage", ("x", 1), {}),
    ("AssistantMessage", ("x",), {"prefix": 1}),
    ("ToolMessage", ("x", 1), {}),
    ("LatestReminderMessage", ("x",), {}),
    ("Conversation", (), {"tool_choice": "any"}),
    ("Conversation", (), {"tool_choice": None}),
    ("Conversation", (), {"reasoning_effort": "extreme"}),
    ("Conversation", (), {"reasoning_effort": 1.5}),
    ("Conversation", (), {"response_format": "json_schema"}),
    ("Conversation", (), {"response_schema": {}, "response_regex": "x"}),
    ("Conversation", (), {"response_schema": {}, "response_format": "json_object"}),
    ("Conversation", (), {"response_regex": "", "response_format": "json_object"}),
    ("Conversation", (), {"response_schema": {1: 2}}),
    ("Conversation", (), {"thinking_mode": 1}),
    ("Conversation", ("xy",), {}),
    ("Conversation", ([1],), {}),
    ("Conversation", (), {"tools": [1]}),
    ("SpecialTokens", (), {"bos": "", "eos": None}),
    ("SpecialTokens", (), {"unknown": "x"}),
    ("SpecialTokens", (), {"bos": 1}),
]


@pytest.mark.parametrize(("name", "arguments", "keywords"), CALLS)
def test_constructors_accept_and_refuse_what_the_wheels_do(name, arguments, keywords):
    ours = outcome(lambda: getattr(recipe, name)(*arguments, **keywords))
    theirs = outcome(lambda: getattr(wheel(), name)(*arguments, **keywords))
    if isinstance(theirs, type):
        assert isinstance(ours, type)
        assert issubclass(ours, theirs)
    else:
        assert not isinstance(ours, type)


PROPERTIES = {
    "Conversation": (
        *("thinking_mode", "tool_choice", "reasoning_effort"),
        *("response_format", "response_schema", "response_regex"),
    ),
    "message": ("role", "content", "reasoning_content", "tool_call_id", "prefix"),
    "tool": ("name", "description", "parameters", "strict", "defer_loading"),
    "image": ("kind", "detail", "data_url", "url", "data", "path"),
}


def facts(conversation: Any) -> list[Any]:
    """All that the public properties of a conversation say."""

    def of(kind: str, item: Any) -> list[Any]:
        return [getattr(item, name) for name in PROPERTIES[kind]]

    found = [of("Conversation", conversation), [of("tool", t) for t in conversation.tools]]
    for message in conversation.messages:
        calls = message.tool_calls
        found += [
            of("message", message),
            None if calls is None else [(c.id, c.name, c.arguments) for c in calls],
            [of("image", image) for image in message.image_sources],
        ]
        if message.role == "system" and message.tools is not None:
            found.append([of("tool", tool) for tool in message.tools])
    return found


@given(CONVERSATIONS)
def test_properties_read_as_those_of_the_wheel(conversation):
    assert facts(build(recipe, conversation)) == facts(build(wheel(), conversation))


@given(CONVERSATIONS)
def test_equal_arguments_make_equal_conversations(conversation):
    first, second = build(recipe, conversation), build(recipe, conversation)
    assert first == second
    assert first.messages == second.messages
    assert len(set(first.messages)) <= len(second.messages)


def test_conversations_that_differ_are_not_equal():
    assert Conversation() != Conversation(thinking_mode=False)
    assert UserMessage("x") != SystemMessage("x")
    assert UserMessage("x") != UserMessage("x", task="title")
    assert UrlImageSource("x") != DataUrlImageSource("x")
    assert SpecialTokens(bos="x") != SpecialTokens()
    assert SpecialTokens(bos=SpecialToken.Bos.value) == SpecialTokens()


@pytest.mark.parametrize("effort", [0, 101, -1, True])
def test_efforts_outside_1_to_100_are_refused(effort):
    with pytest.raises((ValueError, TypeError), match="reasoning_effort"):
        Conversation(reasoning_effort=effort)


def test_nothing_can_be_assigned():
    message, conversation = UserMessage("x"), Conversation([UserMessage("x")])
    for item, name in (
        (message, "content"),
        (conversation, "thinking_mode"),
        (ToolCall("a", "b", "c"), "id"),
        (UrlImageSource("u"), "url"),
    ):
        with pytest.raises(AttributeError):
            setattr(item, name, "y")
    conversation.messages.clear()
    assert len(conversation.messages) == 1


@given(JSON)
def test_a_schema_is_copied(value):
    given_value = {"a": [value]}
    tool = ToolDefinition("n", parameters=given_value)
    given_value["a"].append(1)
    assert tool.parameters == {"a": [value]}


def test_a_schema_of_too_many_levels_is_refused_as_by_the_wheel():
    value: Any = 1
    for _ in range(128):
        value = [value]
    for module in (recipe, wheel()):
        module.ToolDefinition("n", parameters=value)
        with pytest.raises(RecursionError, match="128"):
            module.ToolDefinition("n", parameters=[value])


@given(
    st.lists(st.sampled_from(["<i>", "a", "<i", ">"]), max_size=8).map("".join), st.integers(0, 3)
)
def test_placeholders_are_the_first_places_of_the_token(text, count):
    images = [IMAGE] * count
    message = ToolMessage(text, image_sources=images, image_token="<i>")
    assert len(message.placeholders) == min(count, text.count("<i>"))
    assert all(text[a:b] == "<i>" for a, b in message.placeholders)
    rest = text[message.placeholders[-1][1] :] if message.placeholders else text
    assert text.count("<i>") == len(message.placeholders) + rest.count("<i>")


@pytest.mark.parametrize(
    "make",
    [
        lambda places: UserMessage("a<｜image｜>b", [IMAGE, IMAGE], placeholders=places),
        lambda places: SystemMessage("a<｜image｜>b", [IMAGE, IMAGE], placeholders=places),
        lambda places: ToolMessage("a<｜image｜>b", "1", [IMAGE, IMAGE], placeholders=places),
    ],
)
def test_placeholders_can_be_given_instead_of_searched(make):
    assert make([]).placeholders == []
    assert make(((0, 1), (10, 11))).placeholders == [(0, 1), (10, 11)]
    assert make(None).placeholders == [(1, 10)]
    for wrong in ([(1, 0)], [(1, 12)], [(-1, 1)], [(2, 3), (1, 2)], [(0, 2), (1, 3)]):
        with pytest.raises(ValueError, match="is not an ascending range"):
            make(wrong)
    with pytest.raises(ValueError, match="3 placeholders for 2 images"):
        make([(0, 1), (1, 2), (2, 3)])
    with pytest.raises(ValueError, match="not both"):
        UserMessage("a", [IMAGE], image_token="a", placeholders=[(0, 1)])


def test_base_classes_are_not_made():
    for kind in (Message, ImageSource):
        with pytest.raises(TypeError, match="subclasses"):
            kind()


def test_everything_says_what_it_is():
    call = ToolCall("a", "b", "c")
    assert repr(AssistantMessage("x", tool_calls=[call])) == "AssistantMessage('x')"
    assert repr(BytesImageSource(b"xy")) == "BytesImageSource(<2 bytes>, detail='high', path='')"
    assert repr(SpecialTokens(bos="<b>")) == "SpecialTokens(bos='<b>')"
    assert "messages=1" in repr(Conversation([UserMessage("x")]))


def test_special_tokens_are_spelled_as_the_wheels():
    names = [name for name in dir(wheel().SpecialToken) if name[0].isupper()]
    assert sorted(names) == sorted(token.name for token in SpecialToken)
    for name in names:
        theirs = getattr(wheel().SpecialToken, name)
        assert SpecialToken[name].default_str() == theirs.default_str()
        assert SpecialTokens().token(SpecialToken[name]) == theirs.default_str()
