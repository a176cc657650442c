"""Random conversations as plain recipes, which either module can build."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from deepinfer.recipe import SpecialToken

_SPELLINGS = [token.value for token in SpecialToken]
_PIECES = [
    *_SPELLINGS,
    *("\n", "\n\n", " ", "", "a", "hello", "\r\n", "\x00", "{", '"', "\\"),
    *("你好", "🎉", "é", "\u202e"),
    *("<｜DSML｜ calls>", "</tool_result>", "json", "<IMG>", "1e5", "|", "｜", "<", ">"),
]
# Pieces that mean something somewhere are more likely to break it than any text.
TEXT = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=5).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e5, -0.0, 1e16, 1e-5, 5e-324]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


_OBJECT = st.dictionaries(TEXT, JSON, max_size=4)
ARGUMENTS = st.one_of(
    _OBJECT.map(json.dumps),
    _OBJECT.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))),
    JSON.map(json.dumps),
    st.sampled_from(["", "{}", " { } ", "[]", '{"a":', '{"a":1e400}', '{"a":-0}', '{"a":NaN}']),
    st.sampled_from(
        ['{"a":"\\ud800"}', '{"a":1,"b":2,"a":3}', '{"a":' + "9" * 30 + "}", '{"a":01}']
    ),
    TEXT,
)
IDS = st.sampled_from(["1", "2", "3", "b", "a", "call_00_x"])
IMAGES = st.lists(st.sampled_from(["u1", "u2", "u3"]), max_size=3)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"name": TEXT},
        optional={
            "description": st.none() | TEXT,
            "parameters": JSON,
            "strict": st.none() | st.booleans(),
            "defer_loading": st.booleans(),
        },
    ),
    max_size=3,
)
_ILLUSTRATED: dict[str, Any] = {
    "content": TEXT,
    "images": IMAGES,
    "image_token": st.none() | st.just("<IMG>"),
}
_CALLS = st.none() | st.lists(st.tuples(IDS, TEXT, ARGUMENTS), max_size=3)
_ROLES = {
    "system": {**_ILLUSTRATED, "tools": st.none() | TOOLS},
    "user": _ILLUSTRATED,
    "tool": {**_ILLUSTRATED, "tool_call_id": st.none() | IDS},
    "assistant": {
        "content": TEXT,
        "reasoning_content": st.none() | TEXT,
        "tool_calls": _CALLS,
        "prefix": st.sampled_from([False, False, False, True]),
    },
    "latest_reminder": {"content": TEXT},
}
_OFTEN = ["user", "assistant", "tool", "user", "assistant", "tool", "system", "latest_reminder"]
MESSAGES = st.lists(
    st.sampled_from(_OFTEN).flatmap(
        lambda role: st.fixed_dictionaries({"role": st.just(role), **_ROLES[role]})
    ),
    max_size=7,
)
FORMATS = st.one_of(
    st.just({}),
    st.just({"response_format": "json_object"}),
    JSON.map(lambda schema: {"response_schema": schema}),
    st.just({"response_regex": "a+"}),
)
CONVERSATIONS = st.fixed_dictionaries(
    {
        "messages": MESSAGES,
        "thinking_mode": st.booleans(),
        "tools": TOOLS,
        "tool_choice": st.sampled_from(["auto", "none", "required"]),
        "reasoning_effort": st.sampled_from([None, "low", "high", "xhigh", "max"]),
        "format": FORMATS,
    }
)


# Other spellings of special tokens; some begin others, some occur in texts.
SPELLINGS = st.just({}) | st.dictionaries(
    st.sampled_from(
        [
            *("bos", "eos", "thinking_start", "thinking_end", "system", "user", "assistant"),
            *("latest_reminder", "dsml", "image", "ref", "ref_end", "box", "point_end", "polygon"),
        ]
    ),
    st.sampled_from(["<x>", "a", "ab", "hello", "<｜User｜>", "<", "你", "\n", "<think>"]),
    max_size=5,
)


def build(module: Any, recipe: dict[str, Any]) -> Any:
    """A conversation of `module` from its recipe."""
    return module.Conversation(
        [_message(module, message) for message in recipe["messages"]],
        thinking_mode=recipe["thinking_mode"],
        tools=_tools(module, recipe["tools"]),
        tool_choice=recipe["tool_choice"],
        reasoning_effort=recipe["reasoning_effort"],
        **recipe["format"],
    )


def _tools(module: Any, tools: list[dict[str, Any]] | None) -> Any:
    return None if tools is None else [module.ToolDefinition(**tool) for tool in tools]


def _message(module: Any, message: dict[str, Any]) -> Any:
    role = message["role"]
    if role == "latest_reminder":
        return module.LatestReminderMessage(message["content"])
    if role == "assistant":
        calls = message["tool_calls"]
        return module.AssistantMessage(
            message["content"],
            message["reasoning_content"],
            None if calls is None else [module.ToolCall(*call) for call in calls],
            message["prefix"],
        )
    images = [
        module.UrlImageSource("u", path=f"{path}.{place}")
        for place, path in enumerate(message["images"])
    ]
    shared = {"image_sources": images, "image_token": message["image_token"]}
    if role == "system":
        tools = _tools(module, message["tools"])
        return module.SystemMessage(message["content"], tools=tools, **shared)
    if role == "tool":
        return module.ToolMessage(message["content"], message["tool_call_id"], **shared)
    return module.UserMessage(message["content"], **shared)
