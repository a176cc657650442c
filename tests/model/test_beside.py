"""The pairs of operations that device tests rely on: nothing is changed, and faults are seen."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from deepinfer.ops.formats import quantise_fp8
from deepinfer.runner.assemble import RowSlice
from tests.model.beside import Beside, Distance, Findings, Watched, beside, distance
from tests.model.networks import (
    CPU,
    hash_map,
    last_logits,
    network,
    new_state,
    run,
    tokens,
    with_engram,
)

AT_WORK = {
    *("angles", "attention_inputs", "compress", "embed_streams", "engram_gate", "engram_rows"),
    *("engram_values", "experts", "grouped_output", "head", "index_inputs", "index_select"),
    *("linear_fp8", "low_rank", "mhc_boundary", "mhc_collapse", "mhc_update", "route"),
    *("shared_expert", "sparse_attention", "stream_mean", "write_records", "add_outputs"),
}


def paired(wishes: dict[str, str] | None = None) -> Watched:
    arch = with_engram()
    return beside(arch, CPU, "cpu", hash_map(arch), wishes, seed=7)


def prompt_and_token(net: Any) -> torch.Tensor:
    state = new_state(net)
    ids = tokens(net, 21)
    run(net, state, [RowSlice(ids, 0, 20, 1, (1,), decoder_start=5)])
    return last_logits(net, run(net, state, [RowSlice(ids, 20, 1, 1, (1,), decoder_start=5)]))


def planted(net: Watched, name: str, change: Any) -> None:
    """From now on `change` stands for the implementation that is judged; it is given what ran."""
    pair = getattr(net.ops, name)
    honest = pair.bound
    implementation = replace(honest.implementation, run=lambda **given: change(honest, given))
    pair.bound = replace(honest, implementation=implementation)


def shifted(chosen: Any) -> Any:
    """Every row with the selection of the row before it."""
    return chosen._replace(ids=chosen.ids.roll(1, 0))


def found_of(own: torch.Tensor, wanted: torch.Tensor) -> Distance:
    return Distance(*distance(own, wanted).tolist())


def test_what_goes_on_is_the_reference():
    net = paired()
    assert torch.equal(prompt_and_token(net), prompt_and_token(network()))
    ran = {op for op, _ in net.findings.found}
    assert ran == AT_WORK
    layers = {layer for op, _, layer, _ in net.findings.each() if op == "sparse_attention"}
    assert layers == {0, 1, 2, 3}


def test_another_order_of_sums_stays_near_in_every_operation():
    net = paired()
    prompt_and_token(net)
    largest = net.findings.largest()
    assert max(found.rms for found in largest.values()) < 0.01
    assert largest["mhc_boundary", "pre"].rms > 0
    assert largest["compress", "pairs"].changed > 0


def test_references_beside_themselves_differ_nowhere():
    net = paired({"*": "reference"})
    prompt_and_token(net)
    assert {tuple(found) for found in net.findings.largest().values()} == {(0.0, 0.0, 0.0, 0.0)}


@pytest.mark.parametrize(
    ("name", "part", "change"),
    [
        ("grouped_output", "result", lambda run, given: run(**given) * 1.02),
        ("head", "result", lambda run, given: run(**given).roll(1, -1)),
        ("experts", "result", lambda run, given: run(**{**given, "limit": 0.1})),
        ("sparse_attention", "result", lambda run, given: run(**{**given, "window": 5})),
        ("attention_inputs", "records", lambda run, given: run(**{**given, "eps": 1.0})),
        ("index_select", "ids", lambda run, given: shifted(run(**given))),
        ("route", "topk_weights", lambda run, given: run(**{**given, "scaling": 3.0})),
    ],
)
def test_a_planted_fault_is_seen_where_it_is(name, part, change):
    net = paired({"*": "reference"})
    planted(net, name, change)
    logits = prompt_and_token(net)
    largest = net.findings.largest()
    assert largest[name, part].rms > 0.01
    assert {op for (op, _), found in largest.items() if found.changed} == {name}
    assert torch.equal(logits, prompt_and_token(network()))


@pytest.mark.parametrize("fault", ["not written", "elsewhere", "other values"])
def test_a_planted_fault_in_what_is_stored_is_seen(fault):
    def change(run: Any, given: dict[str, Any]) -> None:
        if fault == "other values":
            run(**{**given, "eps": 1.0})
        elif fault == "elsewhere":
            run(
                **{
                    **given,
                    "batch": replace(given["batch"], page_table=given["batch"].page_table + 1),
                }
            )

    net = paired({"*": "reference"})
    planted(net, "compress", change)
    logits = prompt_and_token(net)
    largest = net.findings.largest()
    assert largest["compress", "latents"].rms > 0.01
    assert largest["compress", "keys"].rms > 0.01
    assert {op for (op, _), found in largest.items() if found.changed} == {"compress"}
    assert torch.equal(logits, prompt_and_token(network()))


def test_distances_of_small_examples():
    one = torch.tensor([3.0, 4.0])
    assert found_of(one, one) == (0.0, 0.0, 0.0, 0.0)
    found = found_of(torch.tensor([3.0, 4.5]), one)
    assert found.rms == pytest.approx(0.1)
    assert found.changed == 0.5
    assert found.worst == pytest.approx(0.5 / 12.5**0.5)
    assert distance(torch.tensor([3.0, torch.nan]), one)[0].isnan()
    rows = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    other = rows.clone()
    other[2] = 9
    assert found_of(other, rows) == (0.25, 0.25, 1.0, 0.0)
    assert found_of(one[:0], one[:0]) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("value", [1.0, 1.9921875, -3.5, 1e-20])
def test_bf16_numbers_beyond_one_unit_in_the_last_place_are_counted(value):
    wanted = torch.full((4,), value, dtype=torch.bfloat16)
    own = wanted.clone()
    own.view(torch.int16)[1] += 1
    own.view(torch.int16)[2] += 2
    assert found_of(own, wanted).beyond == 0.25
    assert found_of(own, wanted).changed == 0.5


def test_small_numbers_among_large_ones_are_not_judged_by_their_own_units():
    wanted = torch.tensor([[1.0] * 7 + [0.05], [1e-3] * 7 + [0.05e-3]], dtype=torch.bfloat16)
    own = wanted.clone()
    own.view(torch.int16)[:, 7] += 5
    assert found_of(own, wanted).beyond == 0.0
    assert found_of(own, wanted).changed == 2 / 16
    own.view(torch.int16)[1, 0] += 2
    assert found_of(own, wanted).beyond == 1 / 14


def test_codes_that_move_by_more_than_a_step_are_counted():
    net = network()
    pair = Beside(net.ops.low_rank, Findings(), net.records)
    wanted = quantise_fp8(torch.randn(2, 64))
    codes = wanted.codes.clone()
    codes[0, 0] += 1 if codes[0, 0] % 128 < 100 else -1
    codes[1, 5] += 2 if codes[1, 5] % 128 < 100 else -2
    pair.compare("pair", wanted._replace(codes=codes), wanted)
    found = pair.findings.largest()["low_rank", "pair"]
    assert (found.changed, found.beyond) == (2 / 128, 1 / 128)
    pair = Beside(net.ops.low_rank, Findings(), net.records)
    pair.compare("pair", wanted._replace(scale=wanted.scale + 1), wanted)
    assert pair.findings.largest()["low_rank", "pair"].beyond == 0.0
