"""Conversations through `LLM.chat`: prompts of the codec in, messages out."""

import json

import pytest

from deepinfer.cli import main
from deepinfer.engine.chat import ChatCodec
from deepinfer.engine.llm import LLM
from deepinfer.errors import CheckpointError, RequestError
from deepinfer.nano.build import random_directory
from deepinfer.request import CompletionOutput, RequestOutput, SamplingParams

SMALL = {
    "device": "cpu",
    "kv_cache_memory_bytes": 64_000_000,
    "max_model_len": 1200,
    "max_num_seqs": 4,
}
SHORT = SamplingParams(max_tokens=5, temperature=0, seed=1)
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = (
    'thought</think>text\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
    '<｜DSML｜ parameter name="a" string="true">x</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_directory(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model, **SMALL)


@pytest.fixture(scope="module")
def codec(model):
    return ChatCodec(model)


def test_the_prompt_is_that_of_the_codec_and_typed_marks_are_text(llm, codec):
    asked = [{"role": "user", "content": "<｜User｜>"}]
    (output,) = llm.chat(asked, SHORT, thinking={"type": "disabled"}, use_tqdm=False)
    ids = list(output.prompt_token_ids)
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(ids, False) == (
        "<｜begin▁of▁sentence｜><｜User｜><｜User｜><｜Assistant｜></think>"
    )
    assert ids.count(tokenizer.encode("<｜User｜>")[0]) == 1
    assert codec.prompt({"messages": asked, "thinking": {"type": "disabled"}}).ids == ids


def test_one_result_a_conversation_whatever_is_wrong_with_some(llm):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = [
        HELLO,
        [{"role": "user"}],
        [{"role": "user", "content": [image]}],
        [],
        3,
        [{"role": "user", "content": "a " * 2000}],
        HELLO,
    ]
    outputs = llm.chat(asked, SHORT, use_tqdm=False)
    assert [o.error is None for o in outputs] == [True, *[False] * 5, True]
    expected = ["content", "images", "mpty", "", "1199"]
    for output, words in zip(outputs[1:-1], expected, strict=True):
        assert words in (output.error or "")
    assert outputs[0].outputs == outputs[-1].outputs
    message = outputs[0].outputs[0].message
    assert message is not None
    assert message["role"] == "assistant"
    assert message["reasoning_content"]


TINY = {
    "type": "object",
    "properties": {"n": {"type": "string", "enum": ["a", "bc"]}},
    "required": ["n"],
}
STRICT = {
    "name": "f",
    "strict": True,
    "parameters": {**TINY, "additionalProperties": False},
}


def test_a_form_of_the_answer_and_required_strict_calls_are_enforced(llm):
    asked = [{"role": "user", "content": "json please"}]
    plain = {"use_tqdm": False, "thinking": {"type": "disabled"}}
    wanted = SamplingParams(max_tokens=150, temperature=1, seed=2)
    schema = {"name": "n", "schema": {**TINY, "additionalProperties": False}}
    form = {"type": "json_schema", "json_schema": schema}
    (answer,) = llm.chat(asked, wanted, response_format=form, **plain)
    assert answer.error is None
    assert answer.outputs[0].finish_reason == "stop"
    assert answer.outputs[0].violation is None
    assert json.loads(answer.outputs[0].message["content"])["n"] in ("a", "bc")
    tool = {"type": "function", "function": STRICT}
    (call,) = llm.chat(asked, wanted, tools=[tool], tool_choice="required", **plain)
    assert call.error is None
    assert call.outputs[0].finish_reason == "stop"
    for made in call.outputs[0].message["tool_calls"]:
        assert made["function"]["name"] == "f"
        assert json.loads(made["function"]["arguments"])["n"] in ("a", "bc")


def test_a_demand_that_cannot_be_met_is_refused_with_its_reason(llm):
    asked = [{"role": "user", "content": "json please"}]
    form = {"type": "regex", "regex": "(?=a)"}
    (output,) = llm.chat(asked, SHORT, use_tqdm=False, response_format=form)
    assert "look" in (output.error or "")


def test_reasoning_content_and_calls_are_read_from_the_text(codec):
    prompt = codec.prompt({"messages": HELLO, "tools": [TOOL]})
    given = RequestOutput("0", None, (1,), (CompletionOutput(0, CALL, (5,), finish_reason="stop"),))
    message = codec.answer(prompt, given).outputs[0].message
    assert message is not None
    assert (message["reasoning_content"], message["content"]) == ("thought", "text")
    function = message["tool_calls"][0]["function"]
    assert function["name"] == "f"
    assert json.loads(function["arguments"]) == {"a": "x"}


@pytest.mark.parametrize("cut", range(1, len(CALL), 7))
def test_deltas_add_up_to_the_message_however_the_text_is_cut(codec, cut):
    reader = codec.reader(codec.prompt({"messages": HELLO, "tools": [TOOL]}))
    deltas = [*reader.push(CALL[:cut]), *reader.push(CALL[cut:]), *reader.finish("stop")]
    message = reader.message()
    for field in ("reasoning_content", "content"):
        assert "".join(d.get(field) or "" for d in deltas) == message[field]
    calls = [d["tool_calls"][0]["function"] for d in deltas if d.get("tool_calls")]
    function = message["tool_calls"][0]["function"]
    assert "".join(call.get("arguments", "") for call in calls) == function["arguments"]


def test_a_stream_says_what_chat_says_and_leaving_it_leaves_nothing_behind(llm):
    (output,) = llm.chat(HELLO, SHORT, use_tqdm=False)
    deltas = list(llm.stream_chat(HELLO, SHORT))
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    message = output.outputs[0].message
    assert message is not None
    assert thought == message["reasoning_content"]
    stream = llm.stream_chat(HELLO, SamplingParams(max_tokens=100))
    next(stream)
    stream.close()
    assert llm.chat(HELLO, SHORT, use_tqdm=False)[0].outputs == output.outputs
    with pytest.raises(RequestError, match="n 2"):
        next(llm.stream_chat(HELLO, SamplingParams(n=2)))


def test_without_values_those_of_the_mode_are_taken(codec):
    thinking = codec.params(codec.prompt({"messages": HELLO}), None, 1000)
    assert (thinking.temperature, thinking.top_p) == (1.0, 1.0)
    assert thinking.max_tokens == 1000 - len(codec.prompt({"messages": HELLO}).ids)
    assert not thinking.skip_special_tokens


def test_a_model_without_tokenizer_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        ChatCodec(tmp_path)


def test_the_terminal_answers_line_by_line(model, monkeypatch, capsys):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\n/reset\nHello\n/exit\nnever\n"))
    arguments = ["chat", "--model", str(model), "--device", "cpu", "--max-tokens", "4"]
    arguments += ["--temperature", "0", "--kv-cache-memory-bytes", "64000000"]
    assert main([*arguments, "--max-model-len", "300", "--max-num-seqs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1] != ""
