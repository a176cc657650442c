from pathlib import Path

import pytest

from deepinfer.engine.resolve import resolve_model
from deepinfer.errors import ConfigError


def never():
    raise AssertionError("this built-in model was not asked for")


def test_a_built_in_name_is_made_ready_on_demand(tmp_path):
    made = []

    def build():
        made.append(1)
        return tmp_path

    assert resolve_model("nano", {"nano": build, "other": never}) == tmp_path
    assert made == [1]


def test_a_directory_is_itself(tmp_path):
    assert resolve_model(str(tmp_path), {"nano": never}) == tmp_path


def test_a_directory_named_like_a_built_in_is_reached_by_a_path(tmp_path, monkeypatch):
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    built = tmp_path / "built"
    assert resolve_model("nano", {"nano": lambda: built}) == built
    assert resolve_model("./nano", {"nano": never}).resolve() == (tmp_path / "nano").resolve()


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "weights").mkdir()
    assert resolve_model("~/weights", {}) == tmp_path / "weights"


@pytest.mark.parametrize("name", ["nanno", "", "no/such/place"])
def test_an_unknown_name_lists_what_is_accepted(name):
    with pytest.raises(
        ConfigError, match="not found; give a checkpoint directory.*'mini', 'nano'"
    ) as e:
        resolve_model(name, {"nano": never, "mini": never})
    assert repr(name) in str(e.value)


def test_a_file_is_told_apart_from_nothing(tmp_path):
    file = Path(tmp_path / "model.safetensors")
    file.touch()
    with pytest.raises(ConfigError, match="is a file; give a checkpoint directory$"):
        resolve_model(str(file), {})
