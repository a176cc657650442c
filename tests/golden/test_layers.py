"""Checkpoint numerics layer by layer: every layer is fed golden streams (configurations a, b).

Once in our own order of sums, once in that of the golden data (see `library_order`).
"""

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch

from deepinfer.model.block import Flow
from deepinfer.model.network import Pass
from deepinfer.ops.formats import decode_record
from deepinfer.runner.assemble import RowSlice, assemble
from tests.golden.compare import Golden
from tests.golden.library_order import library_order
from tests.golden.runs import CPU, SLOT, Observed, Session
from tests.golden.traces import candidates, index_scores, router

pytestmark = pytest.mark.golden

FILE = "trace_s1"
FED = "primary_layer_same_rounding"
LOOSE = "primary_layer_other_rounding"


@dataclass
class Fed:
    """Trace of one prompt whose every layer got golden streams and collapse weights."""

    golden: Golden
    own_order: bool
    session: Session
    observed: Observed
    features: torch.Tensor
    first_pre: torch.Tensor

    @property
    def arch(self):
        return self.session.network.arch

    def all_layers(self, name):
        return torch.stack([self.observed[name, l] for l in range(self.arch.num_hidden_layers)])


CASES = [(config, own) for config in "ab" for own in (True, False)]


@pytest.fixture(
    scope="module", params=CASES, ids=[f"{c}-{'own' if own else 'library'}" for c, own in CASES]
)
def fed(request, runs):
    config, own_order = request.param
    model = runs.model(config, "checkpoint")
    golden, network, prompt = model.golden, model.network, model.prompt("s1")
    session = Session(network, tokens=len(prompt))
    engram = network.arch.engram
    row = RowSlice(prompt, 0, len(prompt), SLOT, session.pages)
    step = assemble([row], engram.max_ngram_size, CPU)
    session.ids = prompt
    observed = {}
    through = Pass(
        step.batch, session.state, step.history, None, lambda n, l, v: observed.update({(n, l): v})
    )
    streams, pre = (golden.tensor(FILE, f"s1.{name}") for name in ("resid", "pre_mix"))
    first = network.begin(step.history[:, 0])
    with nullcontext() if own_order else library_order():
        for layer in network.arch.layers:
            l = layer.index
            flow = first if l == 0 else Flow(streams[l - 1], None, pre[l])
            network.layer(layer, flow, through)
    features = torch.cat(through.features, -1)
    return Fed(golden, own_order, session, observed, features, first.pre)


@pytest.mark.parametrize("name", ["attn_in", "attn_out", "ffn_in", "ffn_out", "resid"])
def test_inputs_and_outputs_of_every_sub_layer(fed, name):
    fed.golden.check(FILE, f"s1.{name}", fed.all_layers(name), FED)


def test_collapse_weights(fed):
    pre = torch.cat((fed.first_pre.unsqueeze(0), fed.all_layers("pre_mix")))
    fed.golden.check(FILE, "s1.pre_mix", pre, FED)


def test_window_records(fed):
    records = decode_record(fed.all_layers("window_records"), fed.session.network.records.window)
    fed.golden.check(FILE, "s1.window_kv", records, FED)


@pytest.mark.parametrize("side", ["attn", "ffn"])
def test_stream_coefficients_of_layer_3(fed, side):
    both, m = fed.observed[f"{side}_coefficients", 3], fed.arch.hc_mult
    fed.golden.check(FILE, f"s1.hc.3.{side}.pre", both[:, :m], FED)
    fed.golden.check(FILE, f"s1.hc.3.{side}.post", both[:, m:], FED)
    fed.golden.check(FILE, f"s1.hc.3.{side}.comb", fed.observed[f"{side}_comb", 3], FED)


def test_engram(fed):
    for layer in fed.arch.engram.layer_ids:
        stem = f"s1.engram.{layer}"
        fed.golden.check(FILE, f"{stem}.rows", fed.observed["engram_rows", layer], "always")
        fed.golden.check(FILE, f"{stem}.gate", fed.observed["engram_gate", layer], FED)
        fed.golden.check(FILE, f"{stem}.out", fed.observed["engram_out", layer], FED)


def test_features_of_the_drafter(fed):
    fed.golden.check(FILE, "s1.main_hidden", fed.features, FED)


def test_routing(fed):
    ids, weights = router(fed.observed, fed.arch.num_hidden_layers)
    fed.golden.check(FILE, "s1.router.ids", ids, FED)
    # In our own order a few values of a row's FFN input lie one bf16 step away; its weights then
    # move by more than a rounding of their own would explain.
    fed.golden.check(FILE, "s1.router.weights", weights, LOOSE if fed.own_order else FED)


def test_latents_and_index_keys(fed):
    for owner in fed.arch.kv_source_layer_ids:
        fed.golden.check(FILE, f"s1.latent.{owner}", fed.session.latents(owner), FED)
        fed.golden.check(FILE, f"s1.index_k.{owner}", fed.session.index_keys(owner), FED)


def test_indexer(fed):
    positions = torch.arange(len(fed.session.ids))
    for layer in fed.arch.index_source_layer_ids:
        queries = fed.observed["index_q", layer]
        decoded = decode_record(queries, fed.session.network.records.index_key)
        fed.golden.check(FILE, f"s1.index_q.{layer}", decoded, FED)
        fed.golden.check(FILE, f"s1.index_w.{layer}", fed.observed["index_w", layer], FED)
        scores = index_scores(fed.session, fed.observed, layer, positions)
        fed.golden.check(FILE, f"s1.index_score.{layer}", scores, FED)


def test_selection_and_candidates(fed):
    for layer in fed.arch.index_source_layer_ids:
        name = f"s1.select.{layer}"
        width = fed.golden.tensor(FILE, name).shape[1]
        fed.golden.check(FILE, name, fed.observed["select", layer][:, :width], FED)
    mask = candidates(fed.observed, fed.arch, len(fed.session.ids))
    fed.golden.check(FILE, "s1.candidates", mask, FED)
