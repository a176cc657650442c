"""The page about the codec: every test it names exists, and both languages say the same."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
DOCS = TESTS.parents[1] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_difference_names_a_test_that_exists():
    rows = re.findall(r"(?m)^\| .* \| `(test_[^`]*)` \|$", page("recipe.md"))
    assert len(rows) > 10
    for row in rows:
        file, _, name = row.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, row


@pytest.mark.parametrize("pattern", [r"`[^`\n]+`", r"(?m)^#+ ", r"(?m)^\w+ +=", r"(?m)^\|.*\|$"])
def test_both_languages_have_the_same_code_and_shape(pattern):
    first, second = (re.findall(pattern, page(name)) for name in ("recipe.md", "recipe.zh.md"))
    if pattern.endswith(r"\|$"):
        first, second = ([row.count("|") for row in rows] for rows in (first, second))
    assert first
    assert sorted(first) == sorted(second)
