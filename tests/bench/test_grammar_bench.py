import json

import pytest

from deepinfer.bench import grammar, grammar_decode
from deepinfer.bench.schemas import EBNFS, KINDS, REGEXES, SCHEMAS
from deepinfer.cli.common import model_directory
from deepinfer.errors import ConfigError
from deepinfer.grammar.finished import check_finished
from tests.grammar.schemas import as_text, random_text
from tests.grammar.vocabularies import compiled, tokenizer, vocabulary


def test_suite_has_two_hundred_schemas_of_ten_kinds():
    assert [len(named) for named in KINDS.values()] == [20] * 10
    assert len({json.dumps(schema) for schema in SCHEMAS.values()}) == 200
    assert (len(REGEXES), len(EBNFS)) == (10, 3)


def test_every_constraint_compiles_and_what_is_finished_is_valid():
    finished = 0
    for number, (_, constraint) in enumerate(grammar.constraints()):
        ids = random_text(compiled(constraint).matcher(), number, most=100)
        if ids is not None:
            assert check_finished(constraint, as_text(ids)) == "", constraint.source[:200]
            finished += 1
    assert finished > 100


@pytest.mark.slow
def test_many_texts_of_every_constraint_are_valid():
    for _, constraint in grammar.constraints():
        one = compiled(constraint)
        for seed in range(40):
            ids = random_text(one.matcher(), seed, most=250)
            if ids is not None:
                assert check_finished(constraint, as_text(ids)) == "", constraint.source[:200]


def test_measuring_gives_a_record_for_each_kind_and_measure(monkeypatch):
    few = list(grammar.constraints())[::41]
    assert len({kind for kind, _ in few}) == 2
    few.append(("ebnf", list(grammar.constraints())[-1][1]))
    monkeypatch.setattr(grammar, "constraints", lambda: iter(few))
    records = grammar.records(grammar.measure(vocabulary()))
    named = {record["name"]: record for record in records}
    for kind in ("json schema", "regex", "ebnf"):
        assert named[f"{kind}: compile"]["refused"] == 0
    total = named["all: mask, first time"]
    assert total["count"] == named["all: mask, once more"]["count"] > 50
    assert 0 < total["p50"] <= total["p99"] <= total["max"]
    assert named["finished"]["finished"] <= named["finished"]["count"]


@pytest.mark.slow
def test_decoding_is_measured_with_constraints_and_without():
    record = grammar_decode.measure(model_directory("nano-random"), "cpu", rows=2, rounds=1)
    assert record["free_ms"] > 0
    assert record["constrained_ms"] > 0
    assert -0.9 < record["slow_down"] < 3


def test_tokenizer_is_read_from_its_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer().to_str(), encoding="utf-8")
    assert grammar.read_vocabulary(path).size == 640
    path.write_text(json.dumps({"model": {"vocab": {"a": 0}}}), encoding="utf-8")
    with pytest.raises(ConfigError, match="no token"):
        grammar.read_vocabulary(path)
    with pytest.raises(ConfigError, match="not readable"):
        grammar.read_vocabulary(tmp_path / "missing.json")
