"""The endpoint back-end against a small server that behaves well and badly."""

import socket
import threading
import time

import pytest

from deepinfer.errors import ConfigError
from deepinfer.eval.endpoint import Endpoint, EndpointBackend
from deepinfer.eval.question import Ask, Call, Question, Reply, Settings
from tests.eval.servers import completion, send, served

PLAIN = Question("a", [{"role": "user", "content": "say hello"}], "hello")
SETTINGS = Settings(max_tokens=20, temperature=0.5, top_p=0.9)


def ask_all(url, questions, settings=SETTINGS, **options) -> list[Reply]:
    values = {"retries": 0, "backoff": 0.01, "timeout": 5.0, **options}
    found: dict[int, Reply] = {}

    def deliver(place: int, reply: Reply) -> None:
        assert place not in found
        assert threading.current_thread() is threading.main_thread()
        found[place] = reply

    asks = [Ask(question, settings, seed) for seed, question in enumerate(questions)]
    EndpointBackend(Endpoint(url, "m", **values)).answer(asks, deliver)
    return [found[place] for place in range(len(questions))]


def ask(url, question=PLAIN, **options) -> Reply:
    return ask_all(url, [question], **options)[0]


def test_a_plain_request_says_what_the_run_wants_and_nothing_else():
    with served(lambda _, handler: send(handler, completion())) as server:
        reply = ask(server.url + "/", key="sesame")
    assert server.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "say hello"}],
            "max_tokens": 20,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 0,
        }
    ]
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == "Bearer sesame"
    assert (reply.content, reply.finish_reason, reply.error) == ("hello", "stop", None)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (11, 3, None)
    assert reply.attempts == 1
    assert 0 < reply.seconds < 5


def test_functions_schema_thinking_and_extra_keys_are_passed_on():
    tool = {"type": "function", "function": {"name": "f"}}
    question = Question("a", PLAIN.messages, 1, tools=[tool], schema={"type": "object"})
    settings = Settings(max_tokens=5, thinking=False)
    with served(lambda _, handler: send(handler, completion())) as server:
        ask_all(server.url, [question], settings, extra={"seed": None, "user": "x"})
    (body,) = server.requests
    assert body["tools"] == [tool]
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert body["thinking"] == {"type": "disabled"}
    assert (body["seed"], body["user"]) == (None, "x")


def test_reasoning_calls_and_cached_tokens_are_read():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"reasoning_content": "hm", "tool_calls": [call]}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}
    value = completion(None, message=message, choice={"finish_reason": "length"}, usage=usage)
    with served(lambda _, handler: send(handler, value)) as server:
        reply = ask(server.url)
    assert (reply.content, reply.reasoning, reply.truncated) == ("", "hm", True)
    assert reply.calls == (Call("f", '{"a": 1}'),)
    assert (reply.prompt_tokens, reply.cached_tokens) == (9, 4)


def test_every_question_gets_its_own_reply_with_many_in_flight_and_no_more_than_allowed():
    lock, running, most = threading.Lock(), 0, 0

    def answer(body, handler):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        send(handler, completion(body["messages"][0]["content"]))

    questions = [Question(str(i), [{"role": "user", "content": f"q{i}"}], 0) for i in range(40)]
    with served(answer) as server:
        replies = ask_all(server.url, questions, concurrency=5)
    assert [reply.content for reply in replies] == [f"q{i}" for i in range(40)]
    assert 2 <= most <= 5
    assert sorted(body["seed"] for body in server.requests) == list(range(40))


def failing_first(times, **failure):
    """A server that fails some times before it answers."""
    left = [times]

    def answer(_, handler):
        left[0] -= 1
        if left[0] >= 0:
            send(handler, {"error": {"message": "busy"}}, **failure)
        else:
            send(handler, completion())

    return answer


@pytest.mark.parametrize("status", [408, 429, 500, 503, 529])
def test_failures_that_may_pass_are_tried_again(status):
    with served(failing_first(2, status=status)) as server:
        reply = ask(server.url, retries=2)
    assert (reply.content, reply.attempts, reply.error) == ("hello", 3, None)


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [
        ({"status": 503}, 3),
        ({"status": 400}, 1),
        ({"status": 401}, 1),
        ({"status": 404}, 1),
        ({"status": 301, "headers": {"Location": "/elsewhere"}}, 1),
        ({"status": 500, "headers": {"x-should-retry": "false"}}, 1),
    ],
)
def test_a_failure_ends_as_an_error_after_a_bounded_number_of_attempts(failure, attempts):
    with served(failing_first(99, **failure)) as server:
        reply = ask(server.url, retries=2)
    assert reply.attempts == attempts == len(server.requests)
    assert reply.error is not None
    assert f"HTTP {failure['status']}" in reply.error
    assert "busy" in reply.error


def test_the_wait_that_a_server_asks_for_is_kept():
    failure = failing_first(1, status=429, headers={"Retry-After": "0.2"})
    with served(failure) as server:
        reply = ask(server.url, retries=1, backoff=30)
    assert reply.error is None
    assert 0.2 <= reply.seconds < 5


def drip(_, handler):
    """A response that never ends, a byte at a time."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.02)


def half(_, handler):
    """A response that is shorter than it says."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def sleeper(_, handler):
    time.sleep(1.5)
    send(handler, completion())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (drip, "timed out"),
        (sleeper, "timed out"),
        (half, "no response"),
        (lambda _, handler: handler.connection.shutdown(socket.SHUT_RDWR), "no response"),
        (lambda _, handler: send(handler, b"<html>"), "no JSON"),
        (lambda _, handler: send(handler, b"\xff\xfe\x00"), "no JSON"),
        (lambda _, handler: send(handler, b"[" * 100_000), "no JSON"),
        (lambda _, handler: send(handler, [1]), "no JSON object"),
        (lambda _, handler: send(handler, {}), "no chat completion"),
        (lambda _, handler: send(handler, {"choices": []}), "no chat completion"),
        (lambda _, handler: send(handler, {"choices": [{"message": None}]}), "no chat completion"),
        (lambda _, handler: send(handler, completion(message={"content": 5})), "no text"),
        (lambda _, handler: send(handler, completion(usage={"prompt_tokens": -1})), "no count"),
        (
            lambda _, handler: send(handler, completion(message={"tool_calls": [{}]})),
            "no chat completion",
        ),
    ],
)
def test_whatever_a_server_does_becomes_a_record(answer, message):
    begin = time.monotonic()
    with served(answer) as server:
        reply = ask(server.url, timeout=0.3)
    assert reply.error is not None
    assert message in reply.error
    assert reply.content == ""
    assert time.monotonic() - begin < 5


def test_a_server_that_is_not_there_becomes_a_record():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reply = ask(f"http://127.0.0.1:{port}", retries=1)
    assert reply.error is not None
    assert "no response" in reply.error
    assert reply.attempts == 2


def test_one_bad_reply_leaves_the_others_alone():
    def answer(body, handler):
        send(handler, completion(), status=400 if body["seed"] == 3 else 200)

    with served(answer) as server:
        replies = ask_all(server.url, [PLAIN] * 8, concurrency=3)
    assert [reply.error is None for reply in replies] == [i != 3 for i in range(8)]


def test_what_the_caller_raises_stops_the_run(monkeypatch):
    with served(lambda _, handler: send(handler, completion())) as server:
        backend = EndpointBackend(Endpoint(server.url, "m", concurrency=2))

        def deliver(place, reply):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backend.answer([Ask(PLAIN, SETTINGS, i) for i in range(500)], deliver)
        time.sleep(0.2)
        asked = len(server.requests)
        time.sleep(0.2)
        assert len(server.requests) == asked < 500


def test_a_bug_in_a_thread_is_raised_and_does_not_hang(monkeypatch):
    backend = EndpointBackend(Endpoint("http://127.0.0.1:1", "m"))
    monkeypatch.setattr(backend, "_body", lambda ask: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backend.answer([Ask(PLAIN, SETTINGS, 0)], lambda place, reply: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://h"}, "http://HOST"),
        ({"url": "localhost:8000"}, "http://HOST"),
        ({"url": "http://h:x"}, "http://HOST"),
        ({"url": "http://u:p@h"}, "--api-key-file"),
        ({"url": "http://h/?key=1"}, "--api-key-file"),
        ({"url": "http://h", "concurrency": 0}, "concurrency 0"),
        ({"url": "http://h", "retries": -1}, "retries -1"),
        ({"url": "http://h", "timeout": 0}, "timeout 0"),
        ({"url": "http://h", "key": "a\nb"}, "header"),
    ],
)
def test_endpoints_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Endpoint(model="m", **options)


def test_a_key_is_not_shown():
    assert "sesame" not in repr(Endpoint("http://h", "m", key="sesame"))
