import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
CASES = {
    "offline.py": (["nano-random", "--max-tokens", "3"], "tokens in"),
    "sweep.py": (
        ["nano-random", "--rows", "2", "--drafts", "0,2", "--tokens", "3"],
        '"rows": 2, "drafts": 2',
    ),
    "demo.py": (["nano-random", "--max-tokens", "2", "--context", "64"], "tokens from the cache"),
    "structured_output.py": (["nano-random", "6"], "one of three: "),
    "replay_equivalence.py": (
        ["nano-random", "--length", "220", "--tokens", "2"],
        "mask and compact: equal\noff and exact: equal\ncompact and exact: different",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_example_runs_as_its_head_says(name, monkeypatch, capsys):
    arguments, shown = CASES[name]
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    code = 0
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert code == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"demo.py"}))
def test_an_example_is_short(name):
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 60
