"""The command line around `deepinfer recipe`."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli import main
from tests.recipe.oracle import tokenizer_text

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Captured = pytest.CaptureFixture[str]
TOOL = {
    "type": "function",
    "function": {"name": "zoom", "parameters": {"type": "object", "properties": {"x": {}}}},
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eHg="}}
AGENT: dict[str, Any] = {
    "model": "DeepSeek-V4.1-Flash",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "see <｜User｜>"}, IMAGE]},
    ],
    "tools": [TOOL],
}
CALL = (
    '<｜DSML｜ calls>\n<｜DSML｜ invoke name="zoom">\n'
    '<｜DSML｜ parameter name="x" string="false">3</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)
ANSWER = f"so</think>yes\n\n{CALL}"


def recipe(monkeypatch: pytest.MonkeyPatch, given: Any, *arguments: str) -> int:
    text = given if isinstance(given, str) else json.dumps(given)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return main(["recipe", *arguments])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tokenizer")
    (directory / "tokenizer.json").write_text(tokenizer_text(), encoding="utf-8")
    return str(directory)


def test_encode_prints_prompt_ids_and_options(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tokenizer: str
):
    assert recipe(monkeypatch, AGENT, "encode", "--tokenizer", tokenizer) == 0
    record = json.loads(capsys.readouterr().out)
    prompt = record["prompt"]
    assert prompt.endswith("<｜User｜>see <｜User｜>\n\n<｜image｜><｜Assistant｜><think>")
    assert record["token_ids"][:2] == [0, 128799]
    assert record["token_ids"].count(128803) == 1
    assert record["token_ids"].count(129264) == 1
    start, stop = record["special_ranges"][-3]
    assert prompt[start:stop] == "<｜image｜>"
    assert [image["kind"] for image in record["images"]] == ["data_url"]
    assert record["parsing"]["parse_tool_calls"] is True
    assert record["parsing"]["thinking_initial_stage"] == "ReasoningStart"


def test_inspect_shows_one_piece_a_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tokenizer: str
):
    assert recipe(monkeypatch, AGENT, "inspect", "--tokenizer", tokenizer + "/tokenizer.json") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == 'special "<｜begin▁of▁sentence｜>"  [0]'
    assert lines[-5:] == [
        'special "<｜User｜>"  [128803]',
        'text    "see <｜User｜>\\n\\n"  [6534, 818, 28217, 6756, 28217, 4697]',
        'special "<｜image｜>"  [129264]',
        'special "<｜Assistant｜>"  [128804]',
        'special "<think>"  [128821]',
    ]
    assert "1 images" in err
    assert recipe(monkeypatch, AGENT, "inspect", "--version", "v4") == 0
    assert "｜System｜" not in capsys.readouterr().out


def test_inspect_counts_the_tokens_of_images(capsys: Captured):
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    assert main(["recipe", "inspect", "--images", str(EXAMPLES / "agent.json")]) == 0
    assert "546 x 546 pixels, 184 tokens" in capsys.readouterr().out.splitlines()[-1]


def test_decode_prints_the_response(capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    assert recipe(monkeypatch, {"request": AGENT, "text": ANSWER}, "decode") == 0
    response = json.loads(capsys.readouterr().out)
    choice = response["choices"][0]
    assert response["model"] == "DeepSeek-V4.1-Flash"
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "so"
    assert choice["message"]["content"] == "yes"
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "zoom",
        "arguments": '{"x": 3}',
    }


@pytest.mark.parametrize(
    ("protocol", "body", "last"),
    [
        ("chat", AGENT, "data: [DONE]"),
        (
            "messages",
            {"max_tokens": 9, "messages": [{"role": "user", "content": "q"}]},
            'data: {"type":"message_stop"}',
        ),
        ("responses", {"input": "q"}, 'data: {"type":"response.completed"'),
    ],
)
def test_decode_streams_every_protocol(capsys: Captured, monkeypatch, protocol, body, last):
    given = {"request": {**body, "model": "mine"}, "text": "so</think>yes"}
    options = ["--protocol", protocol, "--version", "v4.1", "--stream", "--finish", "stop"]
    assert recipe(monkeypatch, given, "decode", *options) == 0
    frames = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert last in frames[-1]
    assert any("yes" in frame for frame in frames)


def test_decode_takes_ids_and_counts_them(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tokenizer: str
):
    given = {"request": AGENT, "token_ids": [67, 128822, 68, 69]}
    assert recipe(monkeypatch, given, "decode", "--tokenizer", tokenizer) == 0
    response = json.loads(capsys.readouterr().out)
    assert response["choices"][0]["message"]["reasoning_content"] == "a"
    assert response["choices"][0]["message"]["content"] == "bc"
    assert response["usage"]["completion_tokens"] == 4
    assert response["usage"]["prompt_tokens"] > 100


@pytest.mark.parametrize(
    ("given", "verb", "complaint"),
    [
        ("{", "encode", "invalid JSON request"),
        ("{", "decode", "holds no JSON"),
        ("[]", "decode", "holds no JSON object"),
        ({"model": "x", "messages": [{"role": "user", "content": "q"}]}, "encode", "passed x"),
        ({"request": AGENT}, "decode", 'either "text" or "token_ids"'),
        ({"request": AGENT, "text": "", "token_ids": []}, "decode", 'either "text"'),
    ],
)
def test_a_mistake_is_one_sentence(capsys: Captured, monkeypatch, given, verb, complaint):
    assert recipe(monkeypatch, given, verb) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_ids_need_a_tokenizer_that_exists(capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    assert recipe(monkeypatch, AGENT, "encode", "--tokenizer", "nowhere") == 2
    assert "cannot read nowhere" in capsys.readouterr().err
