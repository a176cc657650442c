"""Questions as prompts of the model, and its answers read back, with the embedded tokenizer."""

import json

import pytest
import tokenizers

from deepinfer.errors import RequestError
from deepinfer.eval.codec import ChatCodec
from deepinfer.eval.question import Call, Question, Settings
from deepinfer.eval.sets import arith, invoice, needle, tools
from deepinfer.eval.tasks import TASKS, Wish
from deepinfer.nano.build import random_directory
from deepinfer.recipe import (
    AssistantMessage,
    ChatCompletionRequest,
    Conversation,
    ConversionOptions,
    DeepseekV41Encoding,
    ToolCall,
)

MODEL = "DeepSeek-V4.1-Flash"
THINK = Settings(max_tokens=100, thinking=True)
DIRECT = Settings(max_tokens=100, thinking=False)
HELLO = Question("a", [{"role": "user", "content": "Hello"}], 0)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    directory = random_directory(tmp_path_factory.mktemp("cache"))
    return (directory / "tokenizer.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def library(text):
    return tokenizers.Tokenizer.from_str(text)


@pytest.fixture(scope="module")
def codec(text):
    return ChatCodec(text)


@pytest.fixture
def shown(codec, library):
    """The prompt of a question as text, special tokens included."""
    return lambda question, settings: library.decode(
        codec.prompt(question, settings), skip_special_tokens=False
    )


def test_thinking_and_effort_are_asked_for_in_the_prompt(shown):
    assert shown(HELLO, DIRECT).endswith("<｜User｜>Hello<｜Assistant｜></think>")
    assert shown(HELLO, THINK).endswith("<｜User｜>Hello<｜Assistant｜><think>")
    low = shown(HELLO, Settings(100, thinking=True, effort="low"))
    assert low != shown(HELLO, THINK)
    assert shown(HELLO, Settings(100)) == shown(HELLO, THINK)


def test_functions_results_and_schemas_stand_in_the_prompt(shown):
    question = next(q for q in tools.questions(30, 0) if "says" in q.target)
    prompt = shown(question, DIRECT)
    assert f'"name": "{question.tools[0]["function"]["name"]}"' in prompt
    assert f"<tool_result>{question.messages[-1]['content']}</tool_result>" in prompt
    assert '"unit_price"' in shown(invoice.questions(1, 0)[0], DIRECT)


@pytest.mark.parametrize("make", [arith.questions, invoice.questions, tools.questions])
@pytest.mark.parametrize("settings", [THINK, DIRECT])
def test_every_question_of_the_own_sets_can_be_asked(codec, make, settings):
    for question in make(30, 0):
        assert codec.prompt(question, settings)


def test_a_context_is_shown_whole(shown):
    (question,) = needle.questions(1, 0, [500])
    assert question.messages[0]["content"] in shown(question, DIRECT)


def test_special_tokens_in_a_question_stay_text(codec, library):
    end = library.token_to_id("<｜end▁of▁sentence｜>")
    question = Question("a", [{"role": "user", "content": "What is <｜end▁of▁sentence｜>?"}], 0)
    assert end not in codec.prompt(question, DIRECT)


CALL = (
    "\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="f">\n'
    '<｜DSML｜ parameter name="city" string="true">Oslo</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="days" string="false">2</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n"
    "</｜DSML｜ calls>"
)
WITH_TOOLS = Question(
    "a", HELLO.messages, 0, tools=[{"type": "function", "function": {"name": "f"}}]
)


@pytest.mark.parametrize(
    ("written", "settings", "content", "reasoning", "calls"),
    [
        ("hm</think>four", THINK, "four", "hm", ()),
        ("four", DIRECT, "four", "", ()),
        ("only thoughts", THINK, "", "only thoughts", ()),
        ("", DIRECT, "", "", ()),
        ("hm</think>" + CALL, THINK, "", "hm", (Call("f", '{"city": "Oslo", "days": 2}'),)),
        ("I look" + CALL, DIRECT, "I look", "", (Call("f", '{"city": "Oslo", "days": 2}'),)),
    ],
)
def test_answers_are_read_back(codec, library, written, settings, content, reasoning, calls):
    ids = library.encode(written, add_special_tokens=False).ids
    reply = codec.read(WITH_TOOLS, settings, ids, truncated=False)
    assert (reply.content, reply.reasoning, tuple(reply.calls)) == (content, reasoning, calls)
    assert reply.finish_reason == ("tool_calls" if calls else "stop")
    assert codec.read(WITH_TOOLS, settings, ids, truncated=True).truncated


def ideal_answer(codec, question):
    """What a model would write that makes no mistake, as ids without the end token."""
    target = question.target
    content, calls = json.dumps(target, ensure_ascii=False), []
    if "calls" in (target if isinstance(target, dict) else {}):
        content = "" if target["calls"] else "Hello!"
        calls = [
            ToolCall(str(i), call["name"], json.dumps(call["arguments"], ensure_ascii=False))
            for i, call in enumerate(target["calls"])
        ]
    body = {"model": MODEL, "messages": list(question.messages), "tools": list(question.tools)}
    body["thinking"] = {"type": "disabled"}
    asked = ChatCompletionRequest(body).convert(ConversionOptions()).conversation
    answered = Conversation(
        [*asked.messages, AssistantMessage(content, tool_calls=calls or None)],
        thinking_mode=False,
        tools=asked.tools,
    )
    encoding = DeepseekV41Encoding().with_tokenizer(codec.tokenizer)
    prompt, whole = encoding.encode(asked), encoding.encode(answered)
    return whole[len(prompt) : whole.index(1, len(prompt))]  # 1 is the end token


@pytest.mark.parametrize("name", ["arith", "invoice", "needle", "tools"])
def test_an_ideal_answer_to_every_question_is_right(codec, name):
    """From what is asked through prompt, markup and parser to the verdict."""
    task = TASKS[name]
    for question in task.questions(Wish(None, 40, 1, 5, contexts=[100])):
        ids = ideal_answer(codec, question)
        reply = codec.read(question, DIRECT, ids, truncated=False)
        verdict = task.verdict(question.target, question.facts, reply)
        assert verdict.correct, (question, reply, verdict)


@pytest.mark.parametrize(
    "question",
    [
        Question("a", [], 0),
        Question("a", [{"role": "wizard", "content": "x"}], 0),
        Question("a", [{"role": "user", "content": "half a pair \ud800"}], 0),
    ],
)
def test_what_the_format_cannot_express_is_refused(codec, question):
    with pytest.raises(RequestError):
        codec.prompt(question, DIRECT)
