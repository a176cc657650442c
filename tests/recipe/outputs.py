"""Model outputs, right and broken, cut into chunks, and how our codec and the wheel read them.

Tests only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from deepinfer import recipe
from deepinfer.recipe import ParsingOptions, ThinkingInitialStage

PROTOCOLS = ("chat", "messages", "responses")
MODEL = "DeepSeek-V4.1-Flash"
_IDS = re.compile(r"call_(\d+)_(ET_)?[A-Za-z0-9]{24}")
_TIMES = re.compile(r'"(created|created_at|completed_at)":\d+')
_FUNCTION = {"type": "object", "properties": {"a": {"type": "string"}}}


def parameter(name: str, value: str, string: str = "true", space: str = " ") -> str:
    """One parameter tag; `space` is empty in V4."""
    return (
        f'<｜DSML｜{space}parameter name="{name}" string="{string}">{value}'
        f"</｜DSML｜{space}parameter>"
    )


def invoke(name: str, *parameters: str, space: str = " ") -> str:
    """One call."""
    body = "".join(f"\n{each}" for each in parameters)
    return f'<｜DSML｜{space}invoke name="{name}">{body}\n</｜DSML｜{space}invoke>'


def block(*invokes: str, wrapper: str = " calls") -> str:
    """A block of calls; the wrapper of V4 is `tool_calls`."""
    body = "".join(f"\n{each}" for each in invokes)
    return f"<｜DSML｜{wrapper}>{body}\n</｜DSML｜{wrapper}>"


def one_call(value: str = "x", wrapper: str = " calls") -> str:
    """A block with the call f(a=value)."""
    space = wrapper[: -len(wrapper.lstrip())]
    call = invoke("f", parameter("a", value, space=space), space=space)
    return block(call, wrapper=wrapper)


@dataclass(frozen=True)
class Setting:
    """How an output is answered for."""

    protocol: str = "chat"
    thinking: bool = True
    finish: str | None = "Stop"  # of the backend; None: it never says
    ready: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def names_blanked(json: str) -> str:
    """Without random ids and times."""
    return _TIMES.sub(r'"\1":0', _IDS.sub(r"call_\1_\2X", json))


def _wheel_generator(wheel: Any, setting: Setting) -> tuple[Any, Any]:
    thinking = {"type": "enabled" if setting.thinking else "disabled"}
    messages = [{"role": "user", "content": "hi"}]
    function = {"name": "f", "parameters": _FUNCTION}
    if setting.protocol == "chat":
        tools: list[Any] = [{"type": "function", "function": function}]
        body = {"model": MODEL, "messages": messages, "thinking": thinking, "tools": tools}
        request = wheel.ChatCompletionRequest(body)
    elif setting.protocol == "messages":
        tools = [{"name": "f", "input_schema": _FUNCTION}]
        body = {"model": MODEL, "messages": messages, "thinking": thinking, "tools": tools}
        request = wheel.MessagesRequest(body)
    else:
        member = {"type": "function", "name": "m"}
        tools = [
            {"type": "function", **function},
            {"type": "namespace", "name": "N", "description": "D", "tools": [member]},
            {"type": "custom", "name": "apply_patch"},
            {"type": "tool_search", "execution": "client", "parameters": _FUNCTION},
        ]
        effort = {"effort": "high" if setting.thinking else "none"}
        body = {"model": MODEL, "input": "hi", "reasoning": effort, "tools": tools}
        request = wheel.ResponsesRequest(body)
    converted = request.convert(wheel.ConversionOptions())
    generator = type(request).chunk_generator(converted, 'I"D', "M")
    if setting.protocol == "responses":
        generator = generator.with_echo(wheel.ResponsesEcho())
    return generator, converted.parsing_options


def _our_generator(setting: Setting) -> Any:
    if setting.protocol == "chat":
        return recipe.ChatCompletionChunkGenerator('I"D', "M", setting.thinking)
    if setting.protocol == "messages":
        return recipe.MessagesChunkGenerator('I"D', "M", setting.thinking)
    return recipe.ResponsesChunkGenerator(
        'I"D',
        "M",
        setting.thinking,
        namespace_tool_map={"N::m": ("N", "m")},
        custom_tools={"apply_patch"},
        search_tools={"tool_search"},
    )


def our_options(setting: Setting) -> ParsingOptions:
    """What conversion of a request with tools gives, with the changes of the setting."""
    start = ThinkingInitialStage.ReasoningStart if setting.thinking else None
    options = ParsingOptions(thinking_initial_stage=start)
    for name, value in setting.options.items():
        setattr(options, name, value)
    return options


@dataclass
class Told:
    """What a client is told: (event name, JSON) of every push, and the complete response."""

    pushes: list[list[tuple[str | None, str]]]
    response: str
    states: list[str] = field(default_factory=list[str])  # the response after every event, if asked

    @property
    def events(self) -> list[str]:
        """JSON of all events in order."""
        return [json for push in self.pushes for _, json in push]


def tell(
    module: Any,
    setting: Setting,
    chunks: Sequence[Any],
    tokenizer: Any = None,
    states: bool = False,
) -> Told:
    """Drive our processor or the wheel's.

    Args:
        module: `deepinfer.recipe` or the wheel.
        setting: of the answer.
        chunks: texts, or (ids, log-probabilities or None).
        tokenizer: of the same module.
        states: also note the response after every event.
    """
    if module is recipe:
        generator, options = _our_generator(setting), our_options(setting)
    else:
        generator, options = _wheel_generator(module, setting)
        for name, value in setting.options.items():
            setattr(options, name, _translated(module, value))
    processor = module.StreamProcessor(generator, options, tokenizer)
    kind = {"chat": "ChatCompletion", "messages": "Messages", "responses": "Responses"}
    kind_of_response = getattr(module, f"{kind[setting.protocol]}Response")
    response = kind_of_response("a", "b", 3, 2, 1)
    told = Told([], "")

    def take(events: list[Any]) -> None:
        told.pushes.append([])
        for event in events:
            name = kind_of_response.sse_event_name(event)
            told.pushes[-1].append((name, names_blanked(event.to_json())))
            response.accumulate(event)
            if states:
                told.states.append(names_blanked(response.to_json()))

    for chunk in _inputs(module, setting, chunks):
        if processor.finished:
            break
        take(processor.push(chunk))
    take(processor.finish())
    told.response = names_blanked(response.to_json())
    return told


def _inputs(module: Any, setting: Setting, chunks: Sequence[Any]) -> list[Any]:
    make, inputs = module.InferenceChunk, []
    if setting.ready:
        usage = module.PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=4)
        inputs.append(make.ready(prompt_usage=usage, system_fingerprint="fp"))
    inputs += [
        make.text(chunk, 1) if isinstance(chunk, str) else make.tokens(*chunk) for chunk in chunks
    ]
    if setting.finish is not None:
        inputs.append(make.finish(getattr(module.InferenceFinishReason, setting.finish)))
    return inputs


def _translated(module: Any, value: Any) -> Any:
    if isinstance(value, ThinkingInitialStage):
        return getattr(module.ThinkingInitialStage, value.name)
    return value


def cut(text: str, size: int) -> list[str]:
    """Chunks of `size` code points."""
    return [text[i : i + size] for i in range(0, len(text), size)]


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """The text in chunks, cut anywhere; none is empty."""
    borders = draw(st.sets(st.integers(0, len(text)), max_size=12))
    ends = sorted({*borders, 0, len(text)})
    return [text[i:j] for i, j in pairwise(ends)]


_REASONING = ["think", "a\n", " ", " é\n\n", "<", "</th", "𝒳"]
_CONTENT = ["hello", ' wor"ld\n', "\n\n", "x <b>", "\u2028", "\x07", "STOP", "<think>", "`x`"]
_VALUES = [
    ("true", 'v\n"q\\\t'),
    ("true", ""),
    ("true", "2>&1"),
    ("true", "</parameter><｜DSML｜ x"),
    ("true", "\x00\u202e𝒳"),
    ("false", "[1, 2.50]"),
    ("false", "1e400"),
    ("false", '{"a":{}}'),
    ("false", "oops"),
    ("false", ""),
]
_BROKEN = [
    "</think>", "\n", " ", "<", "</", "｜DSML｜", "<｜DSML｜", "</｜DSML｜", " calls>",
    "tool_calls>", 'invoke name="', 'f"', "parameter name=", '"k"', ' string="', 'true">',
    'false">',
    "</｜DSML｜ parameter>", "</｜DSML｜ invoke>", "</｜DSML｜ calls>", "</｜DSML｜tool_calls>",
    '{"a":1}', "```json\n", "```\n", "\n```", "STOP", "ST", "\\", "\x01", "[", "hello world",
    one_call(), one_call("é\n", "tool_calls"), '<｜DSML｜ calls>\n<｜DSML｜ invoke name="g">\n',
]  # fmt: skip


@st.composite
def right_outputs(draw: st.DrawFn, thinking: bool) -> str:
    """Reasoning, content and at most one block, which may be cut off after its first name."""
    text = ""
    if thinking:
        text += "".join(draw(st.lists(st.sampled_from(_REASONING), max_size=3)))
        text += draw(st.sampled_from(["</think>", "</think>\n\n", ""]))
    text += "".join(draw(st.lists(st.sampled_from(_CONTENT), max_size=3)))
    if draw(st.booleans()):
        return text
    space = draw(st.sampled_from([" ", ""]))
    invokes = []
    for _ in range(draw(st.integers(1, 3))):
        values = draw(st.lists(st.sampled_from(_VALUES), max_size=3))
        names = draw(st.sampled_from([("a", "ké", "b"), ("input", "a", "a")]))
        parts = [
            parameter(name, value, string, space)
            for name, (string, value) in zip(names, values, strict=False)
        ]
        tool = draw(st.sampled_from(["f", "g", "N::m", "apply_patch", "tool_search", "x y"]))
        invokes.append(invoke(tool, *parts, space=space))
    calls = block(*invokes, wrapper=" calls" if space else "tool_calls")
    if draw(st.booleans()):
        return text + calls + draw(st.sampled_from(["", "\ntail"]))
    certain = calls.index('">') + 1
    return text + calls[: draw(st.integers(certain, len(calls)))]


_JSON = [
    "",
    '{"a": "x\\n"}',
    '```json\n{"a": 1}\n```',
    "```\n[1]\n```",
    '{"a":"STOP"}',
    "[`]",
    "```json\n1\n``",
    '{"a":"``` \n` x"}',
]


@st.composite
def json_outputs(draw: st.DrawFn, thinking: bool) -> str:
    """JSON, bare or fenced, perhaps with a call, and no other text around it."""
    text = "r</think>" if thinking else ""
    text += draw(st.sampled_from(["", "\n\n"])) + draw(st.sampled_from(_JSON))
    return text + draw(st.sampled_from(["", one_call()]))


def broken_outputs() -> st.SearchStrategy[str]:
    """Markup in any order."""
    return st.lists(st.sampled_from(_BROKEN), max_size=10).map("".join)


@st.composite
def settings(draw: st.DrawFn, broken: bool = False) -> Setting:
    """Protocol, mode and options of an answer."""
    thinking = draw(st.booleans())
    options: dict[str, Any] = draw(
        st.sampled_from([{}, {"stop_sequences": ["wor", "2>"]}, {"parse_tool_calls": False}])
    ).copy()
    if broken:
        stops = [[], ["STOP"], ["\nST", "STOP"], ["2", "\n\n"], ["\n"]]
        stages = list(ThinkingInitialStage) if thinking else [None]
        options = {
            "stop_sequences": draw(st.sampled_from(stops)),
            "parse_json_output": draw(st.integers(0, 4)) == 0,
            "thinking_initial_stage": draw(st.sampled_from(stages)),
            "parse_tool_calls": draw(st.integers(0, 5)) > 0,
        }
    return Setting(
        draw(st.sampled_from(PROTOCOLS)),
        thinking,
        draw(st.sampled_from(["Stop", "Length", "ContentFilter", None])),
        draw(st.booleans()),
        options,
    )
