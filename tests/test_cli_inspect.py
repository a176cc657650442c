"""The command line around `deepinfer inspect`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer import __version__
from deepinfer.cli import main
from tests.arch.configs import RELEASE_FILE

Captured = pytest.CaptureFixture[str]


def test_inspect_prints_the_sizes_of_the_release(capsys: Captured):
    assert main(["inspect", str(RELEASE_FILE)]) == 0
    out, err = capsys.readouterr()
    assert "763.2 B parameters" in out
    assert "510.29 GB" in out
    assert err == ""


def test_inspect_takes_a_directory_and_prints_json(capsys: Captured):
    assert main(["inspect", str(RELEASE_FILE.parent), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["cache"]["bytes_per_token"] == 890
    assert data["cache"]["page_bytes"] == 113_920


def test_an_error_of_ours_is_one_message_and_exit_code_2(capsys: Captured, tmp_path: Path):
    assert main(["inspect", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "no such file" in err
    assert "Traceback" not in err


def test_a_config_of_another_family_is_refused(capsys: Captured, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert main(["inspect", str(tmp_path)]) == 2
    assert "model_type 'llama' is not supported" in capsys.readouterr().err


def test_a_refused_environment_stops_every_command(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DEEPINFER_TYPO", "1")
    assert main(["inspect", str(RELEASE_FILE)]) == 2
    assert "DEEPINFER_TYPO: no such setting" in capsys.readouterr().err


def test_an_ignored_variable_warns_and_the_command_runs(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DEEPINFER_GC_INTERVAL_STEP", "5")
    assert main(["inspect", str(RELEASE_FILE)]) == 0
    assert capsys.readouterr().err.startswith("warning: DEEPINFER_GC_INTERVAL_STEP='5'")


@pytest.mark.parametrize("argv", [[], ["inspect"], ["no-such-command"], ["inspect", "a", "b"]])
def test_wrong_arguments_end_with_code_2(argv: list[str], capsys: Captured):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert re.search(r"see deepinfer( inspect)? --help$", capsys.readouterr().err)


def test_python_dash_m_runs_the_same_command_without_torch():
    script = (
        "import sys, runpy; sys.modules['torch'] = None; "  # importing it would raise
        f"sys.argv = ['deepinfer', 'inspect', {str(RELEASE_FILE)!r}]; "
        "runpy.run_module('deepinfer', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "763.2 B parameters" in done.stdout


def test_a_reader_that_goes_away_causes_no_traceback():
    command = [sys.executable, "-m", "deepinfer", "inspect", str(RELEASE_FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_version_is_that_of_the_package(capsys: Captured):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"deepinfer {__version__}\n"
