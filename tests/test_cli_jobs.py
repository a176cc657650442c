"""`deepinfer generate` and `score` as a user meets them, on the embedded model."""

import json
import subprocess
import sys
import time

import pytest

from deepinfer.cli import main
from deepinfer.nano.build import nano_directory


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One cache for all tests of this file: the model is built once."""
    path = tmp_path_factory.getbasetemp() / "cli-cache"
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(path))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_file_of_prompts_is_answered_line_by_line(tmp_path, capsys):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts = ['{"prompt": "你好", "id": "a"}', "nonsense", "", '{"prompt_token_ids": [7, 8]}']
    source.write_text("\n".join(prompts), encoding="utf-8")
    arguments = [
        "generate",
        "--model",
        "nano-random",
        "--input",
        str(source),
        "--output",
        str(target),
    ]
    assert main([*arguments, "--max-tokens", "3"]) == 1
    first, second, third = lines(target)
    assert (first["id"], first["prompt"], len(first["token_ids"])) == ("a", "你好", 3)
    assert first["finish_reason"] == "length"
    assert "not JSON" in second["error"]
    assert third["prompt_token_ids"] == [7, 8]
    captured = capsys.readouterr()
    assert "random weights" in captured.err
    assert "2 done, 1 failed" in captured.err
    assert "你好" in captured.out


def test_prompts_of_the_command_line_are_answered_on_standard_output(capsys):
    assert main(["generate", "--model", "nano-random", "--prompt", "a", "--prompt", "b"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["a", "b"]
    assert [len(answer["token_ids"]) for answer in answers] == [16, 16]


def test_answers_satisfy_what_the_command_line_demands(tmp_path, capsys):
    schema, source = tmp_path / "schema.json", tmp_path / "in.jsonl"
    schema.write_text('{"enum": ["yes", 12]}', encoding="utf-8")
    own = {"prompt": "b", "structured_outputs": {"regex": "[ab]{2}"}}
    source.write_text('{"prompt": "a"}\n' + json.dumps(own), encoding="utf-8")
    command = ["generate", "--model", "nano-random", "--json-schema", str(schema)]
    assert main([*command, "--input", str(source)]) == 0
    one, two = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert json.loads(one["structured"]) in ("yes", 12)
    assert two["text"] in ("aa", "ab", "ba", "bb")
    assert main([*command, "--chat", "--no-thinking", "--prompt", "a"]) == 0
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert json.loads(told["message"]["content"]) in ("yes", 12)
    assert len(told["prompt_token_ids"]) > len(one["prompt_token_ids"]) + 10  # the schema is shown


def test_scores_give_one_logprob_a_token_after_the_first(capsys):
    assert main(["score", "--model", "nano-random", "--prompt", "one two three"]) == 0
    (record,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(record["logprobs"]) == len(record["prompt_token_ids"]) - 1
    assert record["logprob_sum"] == pytest.approx(sum(record["logprobs"]))
    assert record["perplexity"] > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nano-random", "--input", "no/such/file"], "cannot read no/such/file"),
        (
            ["--model", "nano-random", "--prompt", "a", "--output", "no/such/dir/x"],
            "cannot write no/such/dir/x",
        ),
        (["--model", "no-such-model", "--prompt", "a"], "'nano'"),
        (["--model", "nano-random", "--prompt", "a", "--device", "tpu"], "device 'tpu'"),
        (["--model", "nano-random", "--prompt", "a", "--device", "cuda:63"], "GPU"),
        (["--model", "nano-random", "--prompt", "a", "--max-model-len", "0"], "max_model_len 0"),
        (["--model", "nano-random", "--prompt", "a", "--max-num-seqs", "0"], "max_num_seqs 0"),
    ],
)
def test_wishes_that_cannot_be_met_end_with_one_line(arguments, message, capsys):
    assert main(["generate", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("error: ")
    assert message in error


def test_dummy_weights_depend_on_the_seed_alone(capsys):
    def answer(seed):
        common = ["--load-format", "dummy", "--prompt", "abc", "--max-tokens", "4"]
        assert main(["generate", "--model", "nano-random", *common, "--seed", seed]) == 0
        return json.loads(capsys.readouterr().out)["token_ids"]

    assert answer("1") == answer("1") != answer("2")


@pytest.mark.parametrize("placement", ["host", "disk"])
def test_the_placement_of_the_tables_does_not_change_an_answer(placement, capsys):
    def answer(where):
        assert (
            main(["generate", "--model", "nano-random", "--engram", where, "--prompt", "abcd"]) == 0
        )
        return capsys.readouterr().out

    assert answer(placement) == answer("device")


def test_the_embedded_model_can_be_inspected(cache, capsys):
    assert main(["inspect", "nano", "--json"]) == 0
    by_name = capsys.readouterr().out
    assert main(["inspect", str(nano_directory(cache)), "--json"]) == 0
    assert capsys.readouterr().out == by_name


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_where_it_stopped(tmp_path, cache):
    """kill -9 in the middle, then --resume: every line once, as in a run that nobody disturbed."""
    source, target, whole = (tmp_path / name for name in ("in", "out", "whole"))
    prompts = [{"prompt": f"Line {i} of", "max_tokens": 4 + i, "seed": i} for i in range(24)]
    source.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    command = [
        sys.executable,
        "-m",
        "deepinfer",
        "generate",
        "--model",
        "nano-random",
        "--temperature",
    ]
    command += ["1", "--input", str(source), "--max-num-seqs", "3", "--output"]
    running = subprocess.Popen([*command, str(target)], stdout=subprocess.DEVNULL)
    while len(target.read_text().splitlines() if target.exists() else []) < 5:
        assert running.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    running.kill()
    running.wait()
    assert 5 <= len(lines(target)) < 24
    before = target.read_text().splitlines()
    subprocess.run([*command, str(target), "--resume"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*command, str(whole)], check=True, stdout=subprocess.DEVNULL)
    assert target.read_text() == whole.read_text()
    assert set(before[:-1]) <= set(target.read_text().splitlines())
