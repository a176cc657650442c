"""Environment names and the cache directory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.config import (
    ENVIRONMENT,
    PREFIX,
    cache_dir,
    check_environment,
    engine_defaults,
)
from deepinfer.errors import ConfigError

REFUSED = sorted(name for name, entry in ENVIRONMENT.items() if entry.kind == "refused")
IGNORED = sorted(name for name, entry in ENVIRONMENT.items() if entry.kind == "ignored")


def test_other_variables_are_nobodys_business():
    assert check_environment({"HOME": "/", "DEEPINFER": "1", "XDEEPINFER_THREADS": "1"}) == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_name_stops_with_its_sentence(name: str):
    with pytest.raises(ConfigError) as caught:
        check_environment({PREFIX + name: "17"})
    assert f"{PREFIX}{name}='17' is refused: {ENVIRONMENT[name].says}" in str(caught.value)


@pytest.mark.parametrize("name", IGNORED)
def test_an_ignored_name_warns_with_the_reason(name: str):
    (warning,) = check_environment({PREFIX + name: "17"})
    assert warning == f"{PREFIX}{name}='17' has no effect: {ENVIRONMENT[name].says}"


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_values_that_ask_for_what_happens_anyway_pass_in_silence(name: str):
    for value in ENVIRONMENT[name].fine:
        assert check_environment({PREFIX + name: value}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PREFILL_STORE_EXTRA_STATE", "1"),
        ("ENGRAM_PAD_TOKEN", "3"),
        ("FORCE_LOAD_BALANCE", "True"),
    ],
)
def test_a_feature_that_changes_results_is_never_dropped_in_silence(name: str, value: str):
    with pytest.raises(ConfigError, match=name):
        check_environment({PREFIX + name: value})


def test_batch_invariance_is_always_on():
    assert check_environment({"DEEPINFER_BATCH_INVARIANT": "1"}) == []
    assert len(check_environment({"DEEPINFER_BATCH_INVARIANT": "0"})) == 1


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", max_size=12))
def test_an_unknown_name_is_an_error_that_names_it(name: str):
    if name in ENVIRONMENT:
        return
    with pytest.raises(ConfigError, match=f"{PREFIX}{name}: no such setting"):
        check_environment({PREFIX + name: ""})


def test_all_faults_are_listed_at_once():
    environ = {"DEEPINFER_A": "1", "DEEPINFER_B": "1", "DEEPINFER_FORCE_LOAD_BALANCE": "1"}
    with pytest.raises(ConfigError, match=r"3 problem\(s\)") as caught:
        check_environment(environ)
    assert all(name in str(caught.value) for name in environ)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DEEPINFER_TYPO", "1")
    with pytest.raises(ConfigError, match="DEEPINFER_TYPO"):
        check_environment()
    monkeypatch.setenv("DEEPINFER_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path


def test_cache_directory_follows_the_stated_order(tmp_path: Path):
    named, xdg = str(tmp_path / "named"), str(tmp_path / "xdg")
    both = {"DEEPINFER_CACHE_DIR": named, "XDG_CACHE_HOME": xdg}
    assert cache_dir(both) == tmp_path / "named"
    assert cache_dir({"XDG_CACHE_HOME": xdg}) == tmp_path / "xdg" / "deepinfer"
    assert cache_dir({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "deepinfer"
    assert cache_dir({"DEEPINFER_CACHE_DIR": ""}) == Path.home() / ".cache" / "deepinfer"


def test_a_useless_cache_directory_is_refused(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    for value in ("relative/place", str(file)):
        with pytest.raises(ConfigError, match="give an absolute path of a directory"):
            cache_dir({"DEEPINFER_CACHE_DIR": value})


def test_the_names_that_are_taken_become_options():
    environ = {
        "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": "mask",
        "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS": "150",
        "DEEPINFER_USE_NEXTN_DECODE": "4",
        "DEEPINFER_ENFORCE_EAGER": "1",
    }
    assert check_environment(environ) == []
    assert engine_defaults(environ) == {
        "decoder_replay": "mask",
        "decoder_keep": 150,
        "speculative_config": {"num_speculative_tokens": 4},
        "enforce_eager": True,
    }
    nothing = {name: "0" for name in environ if "MODE" not in name}
    assert engine_defaults(nothing) == {}
    for name in ("YOCO_PREFILL_KEEP_TOKENS", "USE_NEXTN_DECODE"):
        with pytest.raises(ConfigError, match=name):
            engine_defaults({PREFIX + name: "many"})


def test_names_of_drafts_come_together_as_one_option():
    def drafts(**names):
        environ = {PREFIX + name: value for name, value in names.items()}
        assert check_environment(environ) == []
        return engine_defaults(environ).get("speculative_config")

    assert drafts(ENABLE_MTP_VARLEN="0") is None
    assert drafts(ENABLE_MTP_VARLEN="1") == {"policy": "adaptive", "num_speculative_tokens": 5}
    assert drafts(ENABLE_MTP_VARLEN="1", USE_NEXTN_DECODE="2") == {
        "policy": "adaptive",
        "num_speculative_tokens": 2,
    }
    both = {"ENABLE_MTP_VARLEN": "1", "USE_NEXTN_DECODE": "0"}
    assert drafts(**both) == {"policy": "adaptive", "num_speculative_tokens": 0}
    name = "DFLASH_CONFIDENCE_HEAD_TEMPERATURE"
    alone = {"temperature": [1.5], "num_speculative_tokens": 0}  # says nothing of how many
    assert drafts(**{name: "1.5"}) == alone
    assert drafts(**{name: "1.5,2"}, USE_NEXTN_DECODE="3") == {
        "temperature": [1.5, 2.0],
        "num_speculative_tokens": 3,
    }
    with pytest.raises(ConfigError, match=name):
        engine_defaults({PREFIX + name: "1.5;2"})
