"""What the memory plan says of a step against the tensors that the Hopper kernels would get.

The network runs on tensors without memory, and its kernels are not launched.
"""

import dataclasses
from typing import Any

import pytest
import torch

import deepinfer.ops.sample.rules as rules_module
from deepinfer.engine.workspace import StepSize, _network, step_bytes
from deepinfer.model.network import Network
from deepinfer.model.state import State
from deepinfer.ops.batch import Batch
from deepinfer.ops.sample import SamplerTable
from deepinfer.ops.sample.cases import admitted
from deepinfer.step import RowSampling
from tests.engine.live import Live
from tests.gpu.networks import build, small

META = torch.device("meta")


def on_meta(tree: Any) -> Any:
    """The same tuples and dataclasses with tensors that have no memory."""
    if isinstance(tree, torch.Tensor):
        return torch.empty_like(tree, device=META)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        own = {item.name: on_meta(getattr(tree, item.name)) for item in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **own)
    if isinstance(tree, tuple):
        parts = [on_meta(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


@pytest.fixture(scope="module")
def net() -> Network:
    pytest.importorskip("triton")
    made = build(small(), torch.device("cpu"), "sm90", {})
    made.weights = on_meta(made.weights)
    for layer in made.weights.layers:
        if layer.engram is not None:
            table: Any = layer.engram.table
            table.columns, table.device = [on_meta(column) for column in table.columns], META
    made.device = META
    made.window_freqs, made.compressed_freqs = map(
        on_meta, (made.window_freqs, made.compressed_freqs)
    )
    made.hashes = on_meta(made.hashes)
    return made


def taken(net: Network, tokens: int, longest: int, samples: int) -> int:
    """Most bytes at a time of a step of one slice."""
    from deepinfer.ops import aot

    def long(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device=META)

    assert net.arch.engram is not None
    state = State.allocate(net.arch, net.records, pages=4, slots=4, device=META)
    one = long(tokens)
    table, slices = long(4, -(-longest // 128)), ((0, tokens),)
    batch = Batch(one, one, one, one, one, one, long(4), table, slices, longest)
    history = long(tokens, net.arch.engram.max_ngram_size)
    with aot.recorded(), torch.inference_mode(), Live() as live:
        forward = net.forward(history, batch, state)
        net.logits(forward.hidden[:samples])
    return live.peak


@pytest.mark.parametrize(
    ("tokens", "longest"),
    [(1, 4096), (8, 131_072), (64, 1 << 20), (200, 4096), (512, 4096), (513, 900), (2048, 4096),
     (4096, 60_000), (8192, 8192), (8192, 1 << 20)],
)  # fmt: skip
def test_a_step_takes_less_than_the_plan_says_and_more_than_a_fifth(net, tokens, longest):
    size = StepSize(tokens, min(tokens, 64), 0, longest)
    found = taken(net, tokens, longest, size.samples)
    bound = _network(net.arch, net.records, net.ops, tokens, longest)
    assert found <= bound <= step_bytes(net.arch, net.records, net.ops, size)
    # Small widths: lists of ids are as large as hidden rows, and sums of segments larger.
    assert tokens < 16 or bound < 5 * found


def ruled(vocab: int, longest: int, rows: int = 16) -> tuple[Any, ...]:
    """Arguments of `constrain` for rows with every rule."""
    table = SamplerTable(rows + 1)
    rules = RowSampling(
        repetition_penalty=1.2, frequency_penalty=0.1, presence_penalty=0.1, min_tokens=4,
        logit_bias=((3, 1.0),), allowed_token_ids=tuple(range(0, vocab, 2)), bad_words=((1, 2),),
    )  # fmt: skip
    for row in range(rows):
        table.admit(admitted(row + 1, 1, rules))
    masks = torch.randint(-(1 << 31), 1 << 31, (rows, -(-vocab // 32)), dtype=torch.int32)
    given = torch.arange(1, rows + 1), torch.full((rows,), longest)
    known = torch.randint(0, vocab, (rows + 1, longest))
    return torch.randn(rows, vocab), table.state, *given, known, masks


@pytest.mark.parametrize(("vocab", "longest"), [(20_000, 100), (100, 20_000)])
def test_rules_of_sampling_take_less_than_is_thought_when_rows_are_parted(vocab, longest):
    given = ruled(vocab, longest)
    with Live() as live:
        rules_module.constrain(*given)
    each = live.peak / len(given[0])
    # Lists of allowed ids are as long as each request has them.
    assert each * rules_module.part_rows(vocab, longest) <= rules_module.RULED_BYTES * 1.3


@pytest.mark.parametrize("at_once", [1, 5, 15, 16, 17])
def test_rules_in_parts_give_the_same_bits(monkeypatch, at_once):
    given = ruled(200, 30)
    whole = rules_module.constrain(*given)
    monkeypatch.setattr(rules_module, "RULED_BYTES", at_once * (32 * 200 + 24 * 30))
    assert rules_module.part_rows(200, 30) == at_once
    found = rules_module.constrain_in_parts(*given)
    torch.testing.assert_close(found, whole, rtol=0, atol=0)
    assert torch.isfinite(whole).any()
    assert torch.isinf(whole).any()
