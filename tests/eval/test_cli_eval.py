"""`deepinfer eval` as a user meets it, against a server and on the embedded model."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepinfer.cli import main
from tests.eval.servers import completion, send, served

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def somewhere(tmp_path, tmp_path_factory, monkeypatch):
    """An empty working directory, and one cache for all tests of this file."""
    monkeypatch.chdir(tmp_path)
    cache = tmp_path_factory.getbasetemp() / "eval-cache"
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(cache))
    return tmp_path


def calculator(body, handler):
    """Right on sums and differences, silent on all else."""
    text = body["messages"][-1]["content"]
    found = re.search(r"(\d+) ([-+]) (\d+)", text)
    answer = "I cannot"
    if found:
        a, sign, b = int(found[1]), found[2], int(found[3])
        answer = str(a + b if sign == "+" else a - b)
    send(handler, completion(answer))


def run(*arguments):
    return main(["eval", *map(str, arguments)])


def test_a_set_is_asked_kept_scored_and_scored_again(somewhere, capsys):
    prices = somewhere / "prices.toml"
    prices.write_text('currency = "EUR"\ndevice_hour = 3600\nstaff_hour = 1\nstaff_share = 0.5\n')
    with served(calculator) as server:
        code = run("arith", "--url", server.url, "--model", "m", "-n", 40, "--devices", 2, "--json")
    assert code == 0
    asked = len(server.requests)
    report = json.loads(capsys.readouterr().out)
    assert asked == report["score"]["problems"] == 40
    groups = report["groups"]
    assert all(
        s["pass_at_1"] == (k.split(",")[0] in ("sum", "difference")) for k, s in groups.items()
    )
    assert 0 < report["score"]["pass_at_1"] < 1
    assert report["use"]["device_seconds"] == pytest.approx(2 * report["wall_seconds"])

    arguments = ("arith", "--score-only", "--prices", prices, "--verdicts", "v.jsonl")
    assert run(*arguments) == 0
    text = capsys.readouterr().out
    assert f"pass@1            {report['score']['pass_at_1']:.2%} ± " in text
    assert "EUR" in text
    verdicts = [json.loads(line) for line in (somewhere / "v.jsonl").read_text().splitlines()]
    assert sum(v["correct"] for v in verdicts) == report["score"]["solved"]
    assert len(server.requests) == asked


def test_failures_end_with_exit_code_one_and_are_asked_again(somewhere, capsys):
    broken = True

    def answer(body, handler):
        if broken and body["seed"] % 2:
            send(handler, {"error": "bad"}, status=400)
        else:
            calculator(body, handler)

    with served(answer) as server:
        arguments = ("arith", "--url", server.url, "--model", "m", "-n", 20)
        assert run(*arguments) == 1
        failed = int(re.search(r"errors +(\d+)", capsys.readouterr().out)[1])  # pyright: ignore[reportOptionalSubscript]
        assert 0 < failed < 20
        assert run("arith", "--score-only") == 1
        broken = False
        assert run(*arguments) == 2  # without --resume
        assert "--resume" in capsys.readouterr().err
        assert run(*arguments, "--resume") == 0
        assert len(server.requests) == 20 + failed
    assert "errors" not in capsys.readouterr().out


def test_a_judge_decides_hle_and_is_asked_once(somewhere, capsys):
    rows = [
        {"id": str(i), "question": f"q{i}", "answer": "Earth", "image": "x" * (i == 3)}
        for i in range(4)
    ]
    (somewhere / "hle.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (somewhere / "judge.txt").write_text("JUDGE {question} {target} {response}")
    (somewhere / "key").write_text("sesame\n")

    def answer(body, handler):
        text = body["messages"][-1]["content"]
        if text.startswith("JUDGE"):
            grade = {"correct": "no" if "q1" in text else "yes", "confidence": 60}
            send(handler, completion(json.dumps(grade)))
        else:
            send(handler, completion("Exact Answer: our planet\nConfidence: 60%"))

    with served(answer) as server:
        arguments = ["hle", "--data", "hle.jsonl", "--url", server.url, "--model", "m", "--json"]
        assert run(*arguments) == 0
        assert json.loads(capsys.readouterr().out)["score"]["pass_at_1"] == 0
        arguments = ["hle", "--score-only", "--judge-url", server.url, "--judge-model", "j"]
        arguments += ["--judge-key-file", "key", "--judge-prompt", "judge.txt", "--json"]
        for _ in range(2):
            assert run(*arguments) == 0
            report = json.loads(capsys.readouterr().out)
            assert report["score"]["pass_at_1"] == pytest.approx(2 / 3)
            assert report["calibration_error"] == pytest.approx(abs(0.6 - 2 / 3))
            assert report["skipped"] == 1
    assert len(server.requests) == 3 + 3
    assert server.headers[-1]["Authorization"] == "Bearer sesame"


def test_the_embedded_model_is_asked_offline(capsys):
    arguments = ["arith", "--model", "nano", "-n", 2, "--max-tokens", 4, "--device", "cpu"]
    assert run(*arguments, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["truncation_rate"] == 1
    assert report["use"]["completion_tokens"] == 8
    assert report["use"]["device_seconds"] == report["wall_seconds"] > 0
    assert run(*arguments, "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out) == report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arith"], "--model"),
        (["arith", "--score-only"], "cannot read"),
        (["aime2026", "--model", "m"], "--data"),
        (["aime2026", "--model", "m", "--data", "none.jsonl"], "not readable"),
        (["arith", "--model", "m", "--url", "nowhere"], "http://HOST"),
        (["arith", "--model", "m", "--url", "http://h", "--extra-body", "x"], "--extra-body"),
        (["arith", "--model", "m", "--url", "http://h", "--api-key-file", "none"], "none"),
        (["arith", "--model", "m", "--devices", "0"], "--devices 0"),
        (["arith", "--model", "m", "--temperature", "-1"], "temperature"),
        (["needle", "--model", "m", "--context", "1,x"], "--context"),
        (["arith", "--model", "m", "--judge-url", "http://h"], "scored by rules"),
        (["hle", "--model", "m", "--judge-url", "http://h"], "--judge-model"),
        (["hle", "--model", "m", "--judge-model", "j"], "--judge-url"),
        (["arith", "--model", "m", "--prices", "none"], "cannot read none"),
    ],
)
def test_wishes_that_cannot_be_met_end_with_one_line_and_no_file(
    somewhere, arguments, message, capsys
):
    assert run(*arguments) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert list(somewhere.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_stopped(somewhere):
    """kill -9 in the middle, then --resume: every sample once."""
    path = somewhere / "arith.samples.jsonl"
    with served(lambda body, handler: (time.sleep(0.05), calculator(body, handler))[1]) as server:
        command = [sys.executable, "-m", "deepinfer", "eval", "arith", "--url", server.url]
        command += ["--model", "m", "-n", "60", "--concurrency", "3", "--output", str(path)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
        while len(path.read_text().splitlines() if path.exists() else []) < 10:
            assert running.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        running.send_signal(signal.SIGKILL)
        running.wait()
        before = len(path.read_bytes().split(b"\n")) - 2
        assert before < 60
        subprocess.run(
            [*command, "--resume"], check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY
        )
    records = [json.loads(line) for line in path.read_text().splitlines()]
    keys = [record["key"] for record in records if record["record"] == "sample"]
    assert sorted(keys, key=int) == [str(i) for i in range(60)]
    assert len(server.requests) <= 60 + 3
