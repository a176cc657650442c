"""The sweeps: what they time, what they assume and say, what they write and refuse."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from deepinfer.bench import curve, decode, prefill
from deepinfer.bench.floors import Floors, Point, Prefill, Rates
from deepinfer.bench.subject import Subject, open_directory
from deepinfer.cli import main
from deepinfer.device import find_device
from deepinfer.errors import ConfigError
from deepinfer.nano.build import random_directory

RATES = Rates(1e10, 1e11, 1e11)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    directory = random_directory(tmp_path_factory.mktemp("cache"))
    opened = open_directory("nano-random", directory, "cpu", {})
    assert opened.floors.rates.read > 0
    network = opened.network
    return Subject("nano-random", network, find_device("cpu"), Floors(network.arch, RATES))


@pytest.fixture(scope="module")
def decoded(subject):
    work = decode.Workload((1, 3), 128, 2, uncached=32, steps=3, operations=True)
    return [record | subject.record() for record in decode.decode(subject, work)]


@pytest.fixture(scope="module")
def prompts(subject):
    work = prefill.Prompts((1, 2), length=160, uncached=32, repeats=1)
    return [record | subject.record() for record in prefill.prefill(subject, work)]


def test_a_decoding_point_follows_from_its_step_and_what_is_assumed(subject, decoded):
    points = [record for record in decoded if "step_ms" in record]
    assert [record["rows"] for record in points] == [3, 1]
    for record in points:
        rows, seconds = record["rows"], record["step_ms"] * 1e-3
        floor = subject.floors.decode(Point(rows, 128, 2))
        assert record["floor_ms"] == pytest.approx(floor.seconds * 1e3)
        assert record["of_floor"] == pytest.approx(floor.seconds / seconds)
        assert record["user_tokens_s"] == pytest.approx(2.5 / seconds)
        assert record["gpu_tokens_s"] == pytest.approx(2.5 / seconds * rows)
        assert (record["acceptance"], record["acceptance_is"]) == (0.75, "assumed")
        assert (record["hit_rate"], record["hit_rate_is"]) == (0.75, "assumed")
        assert record["slowest_ms"] >= record["step_ms"] > 0
        assert min(record[f"{part}_ms"] for part in ("forward", "sample", "draft")) > 0


def test_operations_of_drafting_are_told_apart(subject, decoded):
    calls = {
        (record["operation"], record["part"]): record["calls"]
        for record in decoded
        if "operation" in record and record["rows"] == 3
    }
    arch = subject.network.arch
    assert arch.draft is not None
    assert calls["experts", "main"] == arch.num_hidden_layers
    assert calls["experts", "draft"] == arch.draft.stages
    assert calls["sparse_attention", "main"] == arch.num_hidden_layers
    assert calls["markov_draft", "draft"] == 1
    assert ("index_select", "draft") not in calls


def test_real_acceptance_is_that_of_the_steps(subject, monkeypatch):
    def spoiled(self, number):
        self.runner.collect(number)
        self.accepted, self.verified = self.accepted + 3, self.verified + 4

    monkeypatch.setattr(decode.Driver, "_collect", spoiled)
    work = decode.Workload((2,), 256, 1, acceptance=None, uncached=0, steps=2)
    [record] = decode.decode(subject, work)
    assert record["acceptance"] == 0.75
    assert record["acceptance_is"] == "real, on made-up contexts"
    assert record["tokens_a_step_and_user"] == 1.75
    assert record["hit_rate"] == 1.0


def test_a_prefill_point_counts_new_tokens_and_whole_prompts(subject, prompts):
    for record, requests in zip(prompts, (1, 2), strict=True):
        floor = subject.floors.prefill(Prefill(32, 128, requests))
        seconds = record["step_ms"] * 1e-3
        assert record["floor_ms"] == pytest.approx(floor.seconds * 1e3)
        assert record["gpu_new_tokens_s"] == pytest.approx(32 * requests / seconds)
        assert record["gpu_prompt_tokens_s"] == pytest.approx(160 * requests / seconds)
        assert (record["hit_rate"], record["hit_rate_is"]) == (0.8, "assumed")


def test_prompts_run_the_decoder_layers_with_their_last_rows_only(subject, monkeypatch):
    seen = []
    honest = subject.network.forward

    def forward(history, batch, state, tail, **other):
        kept = None if tail.keep is None else len(tail.keep)
        seen.append((len(batch.positions), kept))
        return honest(history, batch, state, tail, **other)

    monkeypatch.setattr(subject.network, "forward", forward)
    work = prefill.Prompts((1,), length=384, uncached=256)
    assert prefill.Driver(subject, work, 1).compute() > 0
    assert seen == [(256, 140)]
    seen.clear()
    assert prefill.Driver(subject, work, 2, steps=4).compute() > 0
    assert seen == [(128, 0), (128, 24), (128, None), (128, None)]  # two rows, all of their last


def test_a_budget_holds_prompts_together_or_a_part_of_one(subject, monkeypatch):
    work = prefill.Prompts(length=256, uncached=128, repeats=1, budgets=(32, 128, 256))
    assert work.points() == [(1, 4), (1, 1), (2, 1)]
    found = list(prefill.prefill(subject, work))
    assert [record["name"] for record in found] == [f"prefill budget {b}" for b in (32, 128, 256)]
    for record in found:
        assert record["latency_ms"] == pytest.approx(record["step_ms"] * record["steps"])
        tokens = record["budget"] * record["steps"]
        assert record["gpu_new_tokens_s"] == pytest.approx(tokens / record["latency_ms"] * 1e3)
        assert record["of_floor"] == pytest.approx(record["floor_ms"] / record["latency_ms"])
    drawing = curve.plot("prefill", [record | subject.record() for record in found])
    assert "measured" in drawing
    assert [record["budget"] for record in curve.points(found)] == [32, 128, 256]


@pytest.mark.parametrize("what", ["decode", "prefill"])
def test_files_hold_the_points_a_table_and_two_lines(tmp_path, what, decoded, prompts):
    records = decoded if what == "decode" else prompts
    paths = curve.write(tmp_path, what, records)
    assert [path.name for path in paths] == [f"{what}.{kind}" for kind in ("jsonl", "md", "svg")]
    lines = paths[0].read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(json.dumps(records))
    text = paths[1].read_text()
    assert text.count("assumed") == (2 if what == "decode" else 1)
    rows = [line for line in text.splitlines() if line.startswith(("| 1 |", "| 2 |", "| 3 |"))]
    assert len(rows) == 2
    drawing = ElementTree.fromstring(paths[2].read_text())
    lines = [node for node in drawing.iter() if node.tag.endswith("polyline")]
    assert [len(node.attrib["points"].split()) for node in lines] == [2, 2]


def test_decoding_points_of_several_models_are_a_line_each(decoded):
    both = [*decoded, *(record | {"model": "other"} for record in decoded)]
    drawing = ElementTree.fromstring(curve.plot("decode", both))
    texts = [node.text or "" for node in drawing.iter() if node.tag.endswith("text")]
    assert {"other", "nano-random"} <= set(texts)
    assert "floor" not in texts
    assert sum(node.tag.endswith("polyline") for node in drawing.iter()) == 2


def test_a_plot_has_a_panel_for_each_length_and_a_line_for_each_number_of_drafts(decoded):
    longer = [record | {"length": 999} for record in decoded]
    more = [record | {"drafts": 1} for record in decoded]
    drawing = ElementTree.fromstring(curve.plot("decode", [*decoded, *longer, *more]))
    texts = [node.text or "" for node in drawing.iter() if node.tag.endswith("text")]
    titles = [text for text in texts if text.endswith("tokens")]
    assert [title.split(", ")[1] for title in titles] == ["128 tokens", "999 tokens"]
    assert texts.count("1 drafts") == texts.count("2 drafts") == texts.count("floor") == 1


def test_what_a_floor_allows_is_better_than_what_was_measured(decoded, prompts):
    for what, records in (("decode", decoded), ("prefill", prompts)):
        sweep = curve.SWEEPS[what]
        for point in curve.points(records):
            x, y = sweep.bound(point)
            assert y > point[sweep.y]
            assert (x < point[sweep.x]) == (what == "prefill")
            assert y / point[sweep.y] == pytest.approx(point["step_ms"] / point["floor_ms"])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: decode.Workload(()), "rows"),
        (lambda: decode.Workload((1,), steps=1), "steps 1: use 2 to"),
        (lambda: decode.Workload((1,), acceptance=1.5), "acceptance 1.5"),
        (lambda: decode.Workload((1,), length=10, uncached=11), "0 to the length, 10"),
        (lambda: prefill.Prompts((0,)), "requests"),
        (lambda: prefill.Prompts((1,), length=200, uncached=100), "whole pages of 128"),
        (lambda: prefill.Prompts((1,), repeats=0), "repeats 0"),
        (lambda: prefill.Prompts(budgets=(3000,)), "budget 3000: use multiples of the 4096"),
        (lambda: prefill.Prompts(budgets=(0,)), "budget 0"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_what_a_model_cannot_do_is_refused(subject):
    most = subject.network.arch.max_position_embeddings
    with pytest.raises(ConfigError, match="has 5 at most"):
        next(decode.decode(subject, decode.Workload((1,), 256, 6, uncached=0, steps=2)))
    with pytest.raises(ConfigError, match=f"at most {most - 400}"):
        next(decode.decode(subject, decode.Workload((1,), most, 0, uncached=0, steps=2)))
    with pytest.raises(ConfigError, match=f"at most {most - 8}"):
        next(prefill.prefill(subject, prefill.Prompts((1,), length=most, uncached=most)))


def test_the_command_measures_a_model_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("deepinfer.bench.subject.rates", lambda device: RATES)
    line = "bench decode --model nano-random --device cpu --length 256 --uncached 64 --drafts 0"
    options = ["--batch", "1", "--steps", "2", "--json", "--out", str(tmp_path)]
    assert main([*line.split(), *options]) == 0
    captured = capsys.readouterr()
    [record] = [json.loads(text) for text in captured.out.splitlines()]
    assert (record["name"], record["model"]) == ("decode rows 1", "nano-random")
    assert record["acceptance"] is None
    assert captured.err.count("wrote") == 3
    line = "bench prefill --model nano-random --device cpu --length 256 --uncached 128"
    assert main([*line.split(), "--batch", "1", "--steps", "1"]) == 0
    assert "prefill requests 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "either --model or --slice"),
        (["--model", "nano-random", "--slice", "ep8"], "either --model or --slice"),
        (["--slice", "ep9"], "use one of"),
        (["--slice", "ep8", "--device", "cpu"], "use --device cuda, or --model nano"),
        (["--model", "nano-random", "--device", "cpu", "--batch", "many"], "--batch many"),
        (["--model", "nano-random", "--device", "cpu", "--acceptance", "some"], "number from 0"),
    ],
)
def test_commands_that_cannot_be_understood_are_refused(capsys, monkeypatch, options, says):
    monkeypatch.setattr("deepinfer.bench.subject.rates", lambda device: RATES)
    assert main(["bench", "decode", *options]) == 2
    assert says in capsys.readouterr().err
