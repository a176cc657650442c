"""The stream processor: states, usage, token ids, log-probabilities."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer import recipe
from deepinfer.recipe import (
    ChatCompletionChunkGenerator,
    ChatCompletionResponse,
    InferenceChunk,
    InferenceFinishReason,
    MessagesChunkGenerator,
    ParsingOptions,
    PromptUsage,
    StreamProcessor,
    ThinkingInitialStage,
)
from tests.recipe import outputs
from tests.recipe.oracle import outcome, wheel
from tests.recipe.outputs import PROTOCOLS, Setting, cut, tell

STOP = InferenceChunk.finish(InferenceFinishReason.Stop)


class ByteTokens:
    """Token i is byte i; two ids above are the marks, as one token each."""

    MARKS = {300: "</think>", 301: "｜DSML｜"}

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self.MARKS:
            return self.MARKS[token_id].encode()
        return bytes([token_id]) if token_id < 256 else b""

    def encode(self, text: str) -> list[int]:
        for token_id, spelling in self.MARKS.items():
            if spelling in text:
                before, after = text.split(spelling, 1)
                return [*self.encode(before), token_id, *self.encode(after)]
        return list(text.encode())


def chat(thinking=True, tokenizer=None, **options):
    start = ThinkingInitialStage.ReasoningStart if thinking else None
    generator = ChatCompletionChunkGenerator("id", "m", thinking, created=5)
    settings = ParsingOptions(thinking_initial_stage=start, **options)
    return StreamProcessor(generator, settings, tokenizer)


def answer(processor, *chunks):
    response = ChatCompletionResponse("id", "m", 5, 0, 0)
    for chunk in chunks:
        for event in processor.push(chunk):
            response.accumulate(event)
    for event in processor.finish():
        response.accumulate(event)
    return json.loads(response.to_json())


def text_of(response):
    message = response["choices"][0]["message"]
    return message.get("reasoning_content"), message["content"]


# States.


def test_a_generator_serves_one_processor():
    generator = MessagesChunkGenerator("id", "m", True)
    StreamProcessor(generator, ParsingOptions())
    with pytest.raises(RuntimeError, match="has been consumed"):
        StreamProcessor(generator, ParsingOptions())
    with pytest.raises(RuntimeError, match="has been consumed"):
        generator.with_signature("s")


def test_after_the_end_only_finish_may_be_called():
    processor = chat()
    assert not processor.finished
    processor.push(STOP)
    assert processor.finished
    assert processor.finish() == []
    with pytest.raises(RuntimeError, match="stream processor has finished"):
        processor.push(STOP)


def test_a_closed_processor_takes_nothing():
    processor = chat()
    processor.finish()
    processor.close()
    assert not processor.finished
    for call in (processor.finish, lambda: processor.push(STOP)):
        with pytest.raises(RuntimeError, match="stream processor is closed"):
            call()


def test_a_stop_sequence_ends_the_stream_at_once():
    processor = chat(False, stop_sequences=["END"])
    assert processor.push(InferenceChunk.text("a EN", 1))
    events = processor.push(InferenceChunk.text("D b", 1))
    assert processor.finished
    assert json.loads(events[-1].to_json())["usage"]["completion_tokens"] == 2


def test_ids_without_a_tokenizer_close_the_processor():
    processor = chat()
    with pytest.raises(RuntimeError, match="without a tokenizer"):
        processor.push(InferenceChunk.tokens([1]))
    with pytest.raises(RuntimeError, match="closed"):
        processor.push(STOP)


def test_log_probabilities_must_be_one_an_id():
    processor = chat(tokenizer=ByteTokens())
    with pytest.raises(RuntimeError, match="0 log probabilities for 1 token IDs"):
        processor.push(InferenceChunk.tokens([97], []))
    with pytest.raises(RuntimeError, match="closed"):
        processor.finish()


@pytest.mark.parametrize("chunk", ["text", None, 3])
def test_only_chunks_can_be_pushed(chunk):
    with pytest.raises(TypeError, match="InferenceChunk"):
        chat().push(chunk)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("text", ("\ud800",)),
        ("text", (5,)),
        ("text", ("a", -1)),
        ("text", ("a", 2**64)),
        ("tokens", ([-1],)),
        ("tokens", ([2**32],)),
        ("tokens", ([0, 2**32 - 1],)),
        ("finish", ("stop",)),
        ("text", ("", 0)),
    ],
)
def test_chunks_are_checked_as_by_the_wheel(method, arguments):
    theirs = outcome(getattr(wheel().InferenceChunk, method), *arguments)
    ours = outcome(getattr(InferenceChunk, method), *arguments)
    assert isinstance(ours, type) == isinstance(theirs, type)
    if isinstance(ours, type):
        assert ours is theirs


def test_chunks_tell_what_they_were_made_of():
    usage = PromptUsage(prompt_tokens=3, prompt_cache_hit_tokens=1)
    ready = InferenceChunk.ready(prompt_usage=usage, system_fingerprint="fp")
    assert (ready.kind, ready.prompt_usage, ready.system_fingerprint) == ("ready", usage, "fp")
    assert InferenceChunk.ready().prompt_usage == PromptUsage()
    text = InferenceChunk.text("a", 2)
    assert (text.kind, text.content, text.token_count, text.token_ids) == ("text", "a", 2, None)
    tokens = InferenceChunk.tokens((1, 2))
    assert (tokens.kind, tokens.token_ids, tokens.token_count) == ("tokens", [1, 2], None)
    assert (STOP.kind, STOP.finish_reason) == ("finish", InferenceFinishReason.Stop)


def test_an_empty_chunk_gives_no_delta():
    processor = chat()
    assert len(processor.push(InferenceChunk.text("", 1))) == 1  # the role
    events = processor.push(InferenceChunk.text("", 1)) + processor.push(InferenceChunk.text("a"))
    assert len(events) == 1


def test_an_event_can_be_used_again():
    (event,) = chat().push(InferenceChunk.ready())
    response = ChatCompletionResponse("id", "m", 5, 0, 0)
    response.accumulate(event)
    response.accumulate(event)
    assert json.loads(event.to_json())["object"] == "chat.completion.chunk"


# Usage.


def test_usage_counts_prompt_and_completion_tokens():
    usage = PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=4)
    chunks = [InferenceChunk.ready(prompt_usage=usage), InferenceChunk.text("a</think>b", 3), STOP]
    assert answer(chat(), *chunks)["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "prompt_cache_hit_tokens": 4,
        "prompt_cache_miss_tokens": 6,
    }


def test_usage_that_comes_late_is_not_counted():
    late = InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=10))
    response = answer(chat(), InferenceChunk.text("a"), late, STOP)
    assert response["usage"]["prompt_tokens"] == 0


def test_reasoning_tokens_leave_out_marks_and_dropped_newlines():
    ids = [*b"\nab\n\n", 300, *b"\nc"]
    response = answer(chat(tokenizer=ByteTokens()), InferenceChunk.tokens(ids), STOP)
    assert text_of(response) == ("ab", "c")
    assert response["usage"]["completion_tokens"] == 8
    assert response["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


# Token ids.


@given(st.text(max_size=20), st.lists(st.integers(1, 5), min_size=60, max_size=80))
def test_characters_cut_into_tokens_come_out_whole(text, sizes):
    ids = list(text.encode())
    chunks = []
    for size in sizes:
        chunks.append(InferenceChunk.tokens(ids[:size]))
        ids = ids[size:]
    chunks.append(InferenceChunk.tokens(ids))
    options = {"parse_tool_calls": False}
    whole = text_of(answer(chat(False, **options), InferenceChunk.text(text), STOP))
    processor = chat(False, ByteTokens(), **options)
    events = [json.loads(e.to_json()) for chunk in chunks for e in processor.push(chunk)]
    shown = "".join(event["choices"][0]["delta"]["content"] for event in events)
    shown += "".join(
        json.loads(e.to_json())["choices"][0]["delta"]["content"] for e in processor.finish()
    )
    if "</think>" not in text:
        assert shown == whole[1]


def test_bytes_of_no_character_become_replacement_characters():
    processor = chat(False, ByteTokens())
    response = answer(processor, InferenceChunk.tokens([0xFF, 97, 0xE2, 98, 0xE2, 0x82]), STOP)
    assert text_of(response)[1] == "\ufffda\ufffdb"  # the incomplete end is dropped
    assert response["usage"]["completion_tokens"] == 6


def test_marks_are_tokens_not_characters():
    ids = [*b"a</think>b", 300, *"c</｜DSML｜".encode(), 301]
    response = answer(chat(tokenizer=ByteTokens()), InferenceChunk.tokens(ids), STOP)
    assert text_of(response) == ("a</think>b", "c</｜DSML｜｜DSML｜")


def test_a_stop_sequence_may_be_a_mark():
    processor = chat(False, ByteTokens(), stop_sequences=["x</think>"])
    response = answer(processor, InferenceChunk.tokens([*b"ax", 300, 97]))
    assert text_of(response)[1] == "a"


def test_text_first_means_that_marks_are_characters():
    chunks = [InferenceChunk.text("a"), InferenceChunk.tokens([*b"b", 300, *b"c"]), STOP]
    assert text_of(answer(chat(tokenizer=ByteTokens()), *chunks)) == ("ab", "c")


def test_a_tokenizer_without_the_marks_leaves_their_spellings():
    class Plain(ByteTokens):
        MARKS = {}

    ids = [*b"a</think>b"]
    assert text_of(answer(chat(tokenizer=Plain()), InferenceChunk.tokens(ids), STOP)) == ("a", "b")


# Log-probabilities.


def logged(ids):
    return InferenceChunk.tokens(ids, [(-0.25, [(each, -0.25), (98, -1e-7)]) for each in ids])


def spelt(entries):
    return [entry["token"] for entry in entries or []]


def test_tokens_are_listed_with_the_text_that_they_are_part_of():
    ids = [*b"\nr\n", 300, *b"\nc STOP"]
    processor = chat(tokenizer=ByteTokens(), stop_sequences=["STOP"])
    logprobs = answer(processor, logged(ids))["choices"][0]["logprobs"]
    assert spelt(logprobs["reasoning_content"]) == ["r"]
    assert spelt(logprobs["content"]) == ["c", " "]
    assert logprobs["content"][0] == {
        "token": "c",
        "logprob": -0.25,
        "bytes": [99],
        "top_logprobs": [
            {"token": "c", "logprob": -0.25, "bytes": [99]},
            {"token": "b", "logprob": -1e-7, "bytes": [98]},
        ],
    }


def test_a_token_that_is_no_text_is_spelt_in_bytes():
    processor = chat(False, ByteTokens())
    content = answer(processor, logged("é".encode()), STOP)["choices"][0]["logprobs"]["content"]
    assert spelt(content) == ["\\xc3", "\\xa9"]


def test_tokens_of_calls_are_not_listed():
    ids = ByteTokens().encode("r</think>c" + outputs.one_call())
    response = answer(chat(tokenizer=ByteTokens()), logged(ids), STOP)
    choice = response["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert spelt(choice["logprobs"]["content"]) == ["c"]


def test_infinite_log_probabilities_are_null():
    chunk = InferenceChunk.tokens([97], [(float("-inf"), [(98, float("nan"))])])
    entry = answer(chat(False, ByteTokens()), chunk, STOP)["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] is None
    assert entry["top_logprobs"][0]["logprob"] is None


# Any cut of the output gives the same complete response.


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(data=st.data())
def test_every_cut_gives_the_same_response(protocol, data):
    setting = data.draw(outputs.settings())
    setting = Setting(protocol, setting.thinking, setting.finish, setting.ready, setting.options)
    text = data.draw(outputs.right_outputs(setting.thinking))
    whole, cuts = (
        json.loads(tell(recipe, setting, chunks).response)
        for chunks in ([text], data.draw(outputs.cuts(text)))
    )
    single = json.loads(tell(recipe, setting, cut(text, 1)).response)
    for response in (whole, cuts, single):
        response["usage"] = None  # the chunks of these tests count a token each
    assert cuts == whole
    assert single == whole


def test_prose_about_a_mark_as_tokens_shows_its_spelling():
    ids = ByteTokens().encode("The token <｜DSML｜ is special")
    response = answer(chat(False, ByteTokens()), InferenceChunk.tokens(ids), STOP)
    assert text_of(response)[1] == "The token <｜DSML｜ is special"


# Hostile answers, through events to complete responses.

MEGA = 1_000_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "text",
    [
        outputs.one_call('\x00\u202e"\\' * (MEGA // 4)),
        outputs.block(*[outputs.invoke("f", outputs.parameter("a", "x"))] * 10_000),
        "<｜DSML｜ calls>\n" * (MEGA // 15),
    ],
    ids=["large", "many", "marks"],
)
def test_hostile_answers_take_linear_time(protocol, text):
    began = time.process_time()
    told = tell(recipe, Setting(protocol, thinking=False), cut(text, 1024))
    assert time.process_time() - began < 20
    assert len(told.response) > len(text) // 3


@pytest.mark.parametrize("depth", [100, 200])
def test_deep_arguments_are_kept(depth):
    value = '{"a":' * depth + "1" + "}" * depth
    text = outputs.block(outputs.invoke("f", outputs.parameter("a", value, "false")))
    told = tell(recipe, Setting("messages", thinking=False), [text])
    (tool,) = json.loads(told.response)["content"]
    assert tool["input"] == {"a": json.loads(value)}
