"""Options of the command line that reach the engine, and what `deepinfer ops` tells."""

import argparse
import json

import pytest

from deepinfer import api
from deepinfer.cli import main
from deepinfer.cli.common import add_engine, open_llm
from deepinfer.engine.options import options_from
from deepinfer.model.operations import OPS


@pytest.fixture
def options(monkeypatch):
    """Arguments -> the options that an engine would get."""

    def parsed(*arguments):
        given = {}
        monkeypatch.setattr(api, "LLM", lambda model, **own: given.update(own))
        parser = argparse.ArgumentParser()
        add_engine(parser)
        open_llm(parser.parse_args(["--model", "some", *arguments]))
        del given["verbose"], given["recorder"]
        return options_from(given)

    return parsed


def test_graph_sizes_and_the_time_limit_of_a_step_reach_the_engine(options):
    assert options().step_timeout_s is None
    assert options().cudagraph_capture_sizes is None
    assert options("--step-timeout-s", "2.5").step_timeout_s == 2.5
    assert options("--cudagraph-capture-sizes", "1", "8").graph_sizes() == (1, 8)


@pytest.mark.parametrize(
    ("arguments", "drafts", "adaptive"),
    [
        ((), 0, False),
        (("--num-speculative-tokens", "2"), 2, False),
        (("--speculative-policy", "fixed"), 3, False),
        (("--speculative-policy", "adaptive"), 3, True),
        (("--speculative-policy", "adaptive", "--num-speculative-tokens", "5"), 5, True),
        (("--speculative-policy", "off", "--num-speculative-tokens", "5"), 0, False),
    ],
)
def test_drafts_are_chosen_by_number_and_policy(options, arguments, drafts, adaptive):
    found = options(*arguments).speculative()
    assert (found.tokens, found.drafting.adaptive) == (drafts, adaptive)


def test_ops_tell_which_can_be_captured(capsys):
    assert main(["ops", "--device", "cpu", "--json"]) == 0
    told = {row["op"]: row["graph_safe"] for row in json.loads(capsys.readouterr().out)["ops"]}
    assert set(told) == set(OPS)
    assert main(["ops", "--device", "cpu", "--op", "*=reference"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: "graph-safe" in line for line in lines}
    assert found == {name: op.graph_safe for name, op in OPS.items()}
    assert set(found.values()) == {True, False}
