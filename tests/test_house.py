"""Rules of the house that no other tool checks: rooms, pins, docs, and what files must not say."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import deepinfer

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "deepinfer"
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]

# Rooms that plan: they and what they import stay free of torch.
PLANNING = {
    *("errors", "config", "arch", "request", "step"),
    *("cache", "grammar", "recipe", "scheduler"),
}
# Rooms that compute, and the rooms that they must not know.
COMPUTING = {"ops", "parallel", "model", "runner"}
PLANNERS = {"scheduler", "cache", "grammar"}
MOST_LINES = 400


def rooms() -> set[str]:
    """Top-level modules and packages of deepinfer that exist."""
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def written_files() -> list[Path]:
    """Text files of the repository, without data, environments and caches."""
    places = [
        *PACKAGE.rglob("*.py"),
        *(REPOSITORY / "tests").rglob("*.py"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").rglob("*"),
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / name for name in ("pyproject.toml", "constraints.txt", "Makefile")),
        *(REPOSITORY / name for name in (".ci/run", ".pre-commit-config.yaml", ".gitignore")),
    ]
    return [path for path in places if path.is_file()]


def test_planning_rooms_that_exist_are_held_free_of_torch():
    held = {
        source.removeprefix("deepinfer.")
        for contract in CONTRACTS
        if contract["type"] == "forbidden" and "torch" in contract["forbidden_modules"]
        for source in contract["source_modules"]
    }
    assert held == PLANNING & rooms()


def test_computing_rooms_are_held_away_from_planners_once_both_exist():
    wanted = {(c, p) for c in COMPUTING & rooms() for p in PLANNERS & rooms()}
    held = {
        (source.removeprefix("deepinfer."), target.removeprefix("deepinfer."))
        for contract in CONTRACTS
        if contract["type"] == "forbidden"
        for source in contract["source_modules"]
        for target in contract["forbidden_modules"]
    }
    assert wanted <= held


def test_planning_rooms_load_without_torch():
    script = "import sys; sys.modules['torch'] = None; " + "; ".join(
        f"import deepinfer.{room}" for room in sorted(PLANNING & rooms())
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_map_lists_every_room_and_marks_those_without_code():
    text = (REPOSITORY / "docs" / "map.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"(?m)^\| (`[^|]+) \|", text)
    listed = [
        (room, bool(later))
        for cell in first_cells
        for room, later in re.findall(r"`(\w+)(?:\.py|/)`( \(later\))?", cell)
    ]
    assert len({room for room, _ in listed}) == len(listed)
    assert {room for room, later in listed if not later} == rooms()


def test_files_stay_short_enough_to_read():
    long = {
        str(path.relative_to(REPOSITORY)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert not long


def test_every_dependency_is_pinned():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {re.split(r"[=<>]", name)[0] for name in wanted} <= pinned


def test_version_is_said_once_for_people_and_once_for_pip():
    assert PROJECT["project"]["version"] == deepinfer.__version__


def test_files_name_no_machine_and_no_package_host():
    # Put together from pieces so that this file does not contain them.
    words = ["/" + "work/", "/" + "root/", "/" + "opt/py", "pypi" + ".org", "download.py" + "torch"]
    found = [
        (str(path.relative_to(REPOSITORY)), word)
        for path in written_files()
        for word in words
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_no_work_is_left_as_a_note_in_the_code():
    pattern = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [
        f"{path.relative_to(REPOSITORY)}: {line}"
        for path in written_files()
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    ]
    assert found == []


def test_both_readmes_state_the_same_commands_numbers_and_links():
    english, chinese = (
        (REPOSITORY / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")
    )
    for pattern in (
        r"(?m)^\$ .*|^\.venv/.*|^make \w+",  # commands
        r"(?<![\w.])\d[\d,.]*\d",  # numbers of two digits or more
        r"\((docs/[^)]*|LICENSE)\)",  # links
        r"`[^`\n]+`",  # code
    ):
        first, second = re.findall(pattern, english), re.findall(pattern, chinese)
        assert first
        assert sorted(first) == sorted(second)


def test_documents_link_to_files_that_exist():
    for path in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
