"""Parts of the training program against definitions written another way."""

import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.arch import Record, load_arch, parse_arch
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.model.source import read
from deepinfer.nano.data import tokenizer
from deepinfer.nano.train import quantise
from deepinfer.nano.train.attention import KeySet, attend
from deepinfer.nano.train.calibrate import temperatures
from deepinfer.nano.train.export import config_for, export, write_calibration
from deepinfer.nano.train.masters import first_masters, kinds, restored, rounded
from deepinfer.nano.train.optimise import Rates, orthogonal
from deepinfer.nano.train.rows import decoder_starts
from deepinfer.nano.train.schedule import PHASES, factor, length_of
from deepinfer.nano.train.sinkhorn import balance
from deepinfer.nano.train.step import Trainer
from deepinfer.ops.formats import (
    Fp4Weight,
    Fp8Weight,
    decode_e2m1,
    decode_record,
    dequantise_fp4_weight,
    dequantise_fp8_weight,
    encode_e2m1,
    encode_record,
    pack_e2m1,
)
from deepinfer.ops.mhc_boundary.reference import HyperWeights, split_coefficients
from tests.model.networks import hash_map
from tests.nano.test_train_network import CPU, STRIDE, arch, packed

BUDGET = 21_500_000  # bytes of all files of the trained model


def test_fp4_rounding_equals_the_codes_for_every_bf16_value():
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    values = bits.view(torch.bfloat16).float()
    values = values[torch.isfinite(values)]
    codes = encode_e2m1(values)
    assert torch.equal(quantise.round_e2m1(values), decode_e2m1(pack_e2m1(codes)))


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        (quantise.fp8_rows, "fp8_ue8m0_32"),
        (quantise.fp4_latent_rows, "fp4_e4m3_16"),
        (quantise.fp4_rows, "fp4_ue8m0_32"),
    ],
)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), size=st.floats(-30, 8), coarse=st.booleans())
def test_rows_equal_stored_records(rows, form, seed, size, coarse):
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)) * 2.0**size
    if coarse:  # many ties
        x = torch.round(x * 4 / x.abs().max()) * 2.0 ** round(size)
    x = x.to(torch.bfloat16)
    record = Record(form, 64)
    assert torch.equal(rows(x).float(), decode_record(encode_record(x, record), record))


@pytest.mark.parametrize(
    "straight", [quantise.fp8_vectors, quantise.fp4_latents, quantise.fp4_vectors]
)
def test_roundings_let_gradients_through(straight):
    x = torch.randn(3, 32, requires_grad=True)
    y = straight(x)
    assert not torch.equal(x, y)
    grad = torch.randn(3, 32)
    y.backward(grad)
    assert x.grad is not None
    assert torch.equal(x.grad, grad)


def reference_attention(q, sets, sink, scale):
    """The whole softmax at once, differentiated by torch."""
    heads = q.shape[1]
    scores, values = [], []
    for keys, seen in sets:
        of_token = keys.repeat_interleave(len(q) // len(keys), 0)
        mask = seen.flatten(0, 1).unsqueeze(1)
        scores.append(((q @ of_token.mT) * scale).masked_fill(~mask, -1e30))
        values.append(of_token)
    every = torch.cat((*scores, sink.view(1, heads, 1).expand(len(q), heads, 1)), -1)
    share = torch.softmax(every, -1)[..., :-1]
    return share @ torch.cat(values, 1), share


@pytest.mark.parametrize("count", [1, 2])
def test_attention_and_its_gradients_equal_a_softmax(count):
    random = torch.Generator().manual_seed(count)
    tokens, heads, dim = 12, 3, 8
    q = torch.randn(tokens, heads, dim, generator=random)
    sink = torch.randn(heads, generator=random)
    sets = []
    for groups, keys in ((4, 5), (2, 7))[:count]:
        made = torch.randn(groups, keys, dim, generator=random)
        sets.append((made, torch.rand(groups, tokens // groups, keys, generator=random) > 0.3))
    sets[0][1][0, 0] = False  # a token that sees nothing here
    leaves = [q, sink, *(keys for keys, _ in sets)]
    for leaf in leaves:
        leaf.requires_grad_()
    out, mass = attend(q, tuple(KeySet(*s) for s in sets), sink, 0.4, mass_of=count - 1)
    expected, share = reference_attention(q, sets, sink, 0.4)
    assert torch.allclose(out, expected, atol=1e-5)
    last = sets[-1][0].shape[1]
    assert torch.allclose(mass.flatten(0, 1), share[..., -last:].mean(1), atol=1e-5)
    towards = torch.randn(out.shape, generator=random)
    ours = torch.autograd.grad(out, leaves, towards)
    theirs = torch.autograd.grad(expected, leaves, towards)
    for left, right in zip(ours, theirs, strict=True):
        assert torch.allclose(left, right, atol=1e-4)


def test_balanced_matrices_equal_those_of_the_engine():
    u = torch.randn(20, 8 * 3)
    weights = HyperWeights(u, torch.zeros(24), torch.ones(3), u)
    expected = split_coefficients(u, weights, 20, 1e-6).comb
    assert torch.allclose(balance(u[:, 8:].unflatten(1, (4, 4)), 20, 1e-6), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 32), (2, 40, 16)])
def test_orthogonal_steps_have_singular_values_near_one(shape):
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)).float())
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.4


def test_decoder_starts_lie_before_a_spoken_run_of_their_document():
    batch = packed(((48,), (24, 14), (10, 10, 20)))
    some = 0
    for seed in range(20):
        found = decoder_starts(batch, 5, 0.5, np.random.default_rng(seed))
        for row, documents in enumerate(batch.documents):
            assert (found[row][documents < 0] == 0).all()
            for document in range(documents.max() + 1):
                inside = documents == document
                (start,) = set(found[row][inside].tolist())
                spoken = batch.weights[row][inside] >= 0.5
                begins = np.flatnonzero(spoken & ~np.pad(spoken[:-1], (1, 0)))
                assert start in {0, *np.maximum(begins - 5, 0)}
                some += start > 0
    assert some > 20


def test_calibration_finds_the_temperature_of_an_overconfident_head():
    random = np.random.default_rng(0)
    true = random.normal(0.5, 2, (20_000, 2))
    right = random.random(true.shape) < 1 / (1 + np.exp(-true))
    found = temperatures(true * [2.0, 0.5], right, np.ones(true.shape, dtype=bool))
    assert found == pytest.approx([2.0, 0.5], rel=0.12)
    none = np.zeros(true.shape, dtype=bool)
    assert temperatures(true, right, none) == [1.0, 1.0]


def test_a_run_ends_with_selected_entries_and_small_steps():
    assert PHASES[-1].sparse
    assert {length_of(step, 0.99) for step in range(6)} == {1024, 4096}
    assert {length_of(step, 0.1) for step in range(6)} == {1024}
    assert factor(0, 0.0) < 0.02
    assert factor(1000, 0.2) == 1.0
    sizes = [factor(1000, progress / 100) for progress in range(101)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == pytest.approx(0.02)


def trainer():
    return Trainer(
        arch(), hash_map(arch()), CPU, seed=0, fuse=lambda f: f, stride=STRIDE, kinds=1,
        rates=Rates(),
    )  # fmt: skip


def test_a_run_taken_up_again_goes_on_with_the_same_numbers():
    batch, random = packed(), np.random.default_rng(1)
    first = trainer()
    rows = first.rows(batch, random)
    losses = [float(first.train(rows, sparse=False, offset=0, factor=1.0).loss) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    saved = io.BytesIO()
    torch.save({"bank": first.bank.state(), "optimiser": first.optimiser.state()}, saved)
    saved.seek(0)
    state = torch.load(saved)
    second = trainer()
    second.bank.load(state["bank"])
    second.optimiser.load(state["optimiser"])
    reports = [t.train(rows, sparse=True, offset=1, factor=0.5) for t in (first, second)]
    assert torch.equal(reports[0].loss, reports[1].loss)
    for left, right in zip(first.bank.groups, second.bank.groups, strict=True):
        assert torch.equal(left.values, right.values)


def test_working_tensors_are_what_the_stored_ones_decode_to():
    masters = first_masters(arch(), 1)
    made = trainer().bank
    made.load({g.names[0]: torch.stack([masters[n] for n in g.names]) for g in made.groups})
    weights = made.working(torch.bfloat16, quantise=True)
    for name, kind in kinds(arch()).items():
        assert torch.equal(weights[name].float(), rounded(masters[name], kind.form)), name


def test_an_exported_model_loads_and_keeps_its_numbers(tmp_path):
    words = tokenizer()
    config = config_for(words)
    out = tmp_path / "model"
    made = parse_arch(config)
    masters = first_masters(made, 4)
    export(out, masters, config, words)
    write_calibration(out, [1.5, 1.25])
    assert sum(file.stat().st_size for file in out.iterdir()) < BUDGET
    assert json.loads((out / "calibration.json").read_text())["temperature"][1] == 1.25
    source = Checkpoint(out, load_arch(out))
    fp8 = Fp8Weight(
        read(source, "layers.2.attn.wq_b.weight"), read(source, "layers.2.attn.wq_b.scale")
    )
    expected = rounded(masters["layers.2.attn.wq_b.weight"], "fp8")
    assert torch.equal(dequantise_fp8_weight(fp8), expected)
    one = "layers.3.ffn.experts.5.w3"
    fp4 = Fp4Weight(read(source, f"{one}.weight"), read(source, f"{one}.scale"))
    stack = rounded(masters["layers.3.ffn.experts.w13"], "fp4")[5]
    assert torch.equal(dequantise_fp4_weight(fp4), stack.chunk(2)[1])
    back = restored(source, made)
    for name, kind in kinds(made).items():
        assert torch.equal(back[name], rounded(masters[name], kind.form)), name
