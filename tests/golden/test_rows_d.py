"""Configuration d row by row: every sub-layer recomputed from the stored files alone.

The trace keeps some positions only; window records, latents and index keys of all others come from
the files too. What one sub-layer computes is never fed to the next: golden values are.
"""

from itertools import pairwise

import pytest
import torch

from deepinfer.arch import PAGE_TOKENS
from deepinfer.model.block import Flow
from deepinfer.model.network import Pass
from deepinfer.model.state import State
from deepinfer.ops.batch import Batch
from deepinfer.ops.formats import decode_e8m0, decode_record
from deepinfer.ops.index_select import CandidateRule, Selection
from deepinfer.ops.index_select.reference import block_mask, head_scores, select
from deepinfer.ops.rotation import rotate, rotation
from tests.golden.runs import CPU
from tests.golden.traces import candidates, masked, router

pytestmark = pytest.mark.golden

FILE = "trace_s1"
FED = "primary_layer_same_rounding"
LAST = 12  # rows whose queries and attention outputs are stored


class Rows:
    """The stored rows of s1, over a state made of golden records.

    Neighbouring positions form one request, with a slot whose rings hold what came before; all
    requests share the pages.
    """

    def __init__(self, model):
        self.model, self.golden, self.arch = model, model.golden, model.arch
        self.ids = model.prompt("s1")
        self.positions = self.golden.tensor(FILE, "s1.rows").long()
        self.seen, self.stored_entries = {}, {}
        pages = -(-len(self.ids) // PAGE_TOKENS)
        batch = self._batch(pages)
        self.state = State.allocate(
            self.arch,
            model.network.records,
            pages=pages + 1,
            slots=len(batch.slots) + 1,
            device=CPU,
        )
        self._fill_pages()
        self._fill_rings(batch)
        width = self.arch.engram.max_ngram_size
        padded = torch.tensor([-1] * (width - 1) + self.ids)
        history = padded.unfold(0, width, 1).flip(1)[self.positions]
        self.step = Pass(batch, self.state, history)
        for layer in self.arch.layers:
            self._recompute(layer)

    def tensor(self, name):
        return self.golden.tensor(FILE, f"s1.{name}")

    def check(self, name, value, part=None, condition=FED):
        self.golden.check(FILE, f"s1.{name}", value, condition, part)

    def stacked(self, name, layers=None):
        layers = range(self.arch.num_hidden_layers) if layers is None else layers
        return torch.stack([self.seen[name, l] for l in layers])

    def _batch(self, pages):
        positions = self.positions.tolist()
        cuts = [i for i, (p, q) in enumerate(pairwise(positions), 1) if q != p + 1]
        slices = tuple(pairwise([0, *cuts, len(positions)]))
        counts = torch.tensor([last - first for first, last in slices])
        first = torch.tensor([first for first, _ in slices]).repeat_interleave(counts)
        last = torch.tensor([last - 1 for _, last in slices]).repeat_interleave(counts)
        return Batch(
            positions=self.positions,
            rows=torch.arange(len(slices)).repeat_interleave(counts),
            starts=self.positions[first],
            ends=self.positions[last] + 1,
            lower=torch.zeros_like(self.positions),
            cached=torch.zeros_like(self.positions),
            slots=torch.arange(len(slices)) + 1,
            page_table=(torch.arange(pages) + 1).expand(len(slices), pages),
            slices=slices,
            max_len=len(self.ids),
        )

    def _fill_pages(self):
        for owner in self.arch.kv_source_layer_ids:
            views = self.state.owners[owner]
            entry = torch.arange(len(self.ids) // views.ratio)
            page, row = 1 + entry // views.entries, entry % views.entries
            stored = {
                f"{kind}.{part}": self.golden.tensor("decode", f"s1.{kind}.{owner}.{part}")[entry]
                for kind in ("latent", "index_k")
                for part in "qs"
            }
            views.latents[page, row] = torch.cat((stored["latent.q"], stored["latent.s"]), -1)
            views.key_codes[page, row] = stored["index_k.q"]
            views.key_scales[page, row] = stored["index_k.s"]

    def _fill_rings(self, batch):
        layers = self.tensor("window_layers").tolist()
        records = torch.cat((self.tensor("window_kv.q"), self.tensor("window_kv.s")), -1)
        for layer, all_positions in zip(layers, records, strict=True):
            ring = self.state.windows[layer]
            for slot, (first, _) in enumerate(batch.slices, start=1):
                position = int(batch.positions[first])
                before = torch.arange(max(0, position - ring.shape[1]), position)
                ring[slot, before % ring.shape[1]] = all_positions[before]

    def _recompute(self, layer):
        """Attention from golden streams, then the FFN from golden streams and attention output."""
        l, network, step = layer.index, self.model.network, self.step
        if l == 0:
            flow = network.begin(step.history[:, 0])
            self.seen["first_pre", 0] = flow.pre
        else:
            flow = Flow(self.tensor("resid")[l - 1], None, self.tensor("pre_mix")[l])
        step.observer = lambda name, l, value: self.seen.update({(name, l): value})
        network.layer(layer, flow, step)
        self._restore(layer)
        streams = flow.streams if layer.engram is None else self.tensor(f"engram.{l}.out")
        block, weights = network.block, network.weights.layers[l].block
        boundary = block.enter(Flow(streams, None, flow.pre), weights.hyper_attn)
        flow = block.leave(boundary, self.tensor("attn_out")[l])
        observe = lambda name, value: self.seen.update({(name, l): value})  # noqa: E731
        flow = block.feed_forward(flow, weights, self.arch.num_experts_per_tok, observe)
        observe("resid", block.settle(flow).streams)
        observe("pre_mix", flow.pre)

    def _restore(self, layer):
        """Keep the entries that the layer stored, then put the golden ones and ids back."""
        if layer.owns_kv:
            views = self.state.owners[layer.index]
            entry = self.positions[self.positions % views.ratio == views.ratio - 1] // views.ratio
            page, row = 1 + entry // views.entries, entry % views.entries
            self.stored_entries[layer.index] = (
                entry,
                views.latents[page, row].clone(),
                torch.cat((views.key_codes[page, row], views.key_scales[page, row]), -1),
            )
            self._fill_pages()
        if layer.selects:
            blocks = self.step.selections[layer.index].blocks
            ids = self.tensor(f"select.{layer.index}").long()
            self.step.selections[layer.index] = Selection(ids, blocks)


@pytest.fixture(scope="module")
def rows(runs):
    return Rows(runs.model("d", "checkpoint"))


@pytest.mark.parametrize("name", ["attn_in", "ffn_in", "ffn_out", "resid"])
def test_inputs_and_outputs_of_every_sub_layer(rows, name):
    rows.check(name, rows.stacked(name))


def test_attention_outputs_where_the_window_is_stored(rows):
    layers = rows.tensor("window_layers").tolist()
    rows.check("attn_out", rows.stacked("attn_out", layers), lambda t: t[layers])


def test_collapse_weights(rows):
    first = rows.seen["first_pre", 0].unsqueeze(0)
    rows.check("pre_mix", torch.cat((first, rows.stacked("pre_mix"))))


def test_window_records(rows):
    records = rows.stacked("window_records", rows.tensor("window_layers").tolist())
    codes, scales = records.split((512, 16), dim=-1)
    rows.check("window_kv.q", codes, lambda t: t[:, rows.positions])
    rows.check("window_kv.s", scales, lambda t: t[:, rows.positions])


def test_queries_and_attention_before_the_inverse_rotation(rows):
    by = rotation(rows.positions[-LAST:], rows.model.network.compressed_freqs)
    for layer in (3, 8):
        rows.check(f"attn_q.{layer}", rows.seen["attn_q", layer][-LAST:])
        rows.check(f"attn_o.{layer}", rotate(rows.seen["attn_o", layer][-LAST:], by))


@pytest.mark.parametrize("side", ["attn", "ffn"])
def test_stream_coefficients_of_layer_3(rows, side):
    both, m = rows.seen[f"{side}_coefficients", 3], rows.arch.hc_mult
    rows.check(f"hc.3.{side}.pre", both[:, :m])
    rows.check(f"hc.3.{side}.post", both[:, m:])
    rows.check(f"hc.3.{side}.comb", rows.seen[f"{side}_comb", 3])


def test_engram(rows):
    for layer in rows.arch.engram.layer_ids:
        rows.check(f"engram.{layer}.rows", rows.seen["engram_rows", layer], condition="always")
        rows.check(f"engram.{layer}.gate", rows.seen["engram_gate", layer])
        rows.check(f"engram.{layer}.out", rows.seen["engram_out", layer])


def test_features_of_the_drafter(rows):
    rows.check("main_hidden", torch.cat(rows.step.features, -1))


def test_routing(rows):
    ids, weights = router(rows.seen, rows.arch.num_hidden_layers)
    rows.check("router.ids", ids)
    rows.check("router.weights", weights)


def test_stored_entries(rows):
    """Latents and index keys have no layer tolerance of their own here; nearly all bytes agree."""
    for owner, (entry, latents, keys) in rows.stored_entries.items():
        for kind, found in (("latent", latents), ("index_k", keys)):
            stored = [rows.golden.tensor("decode", f"s1.{kind}.{owner}.{p}")[entry] for p in "qs"]
            assert (found == torch.cat(stored, -1)).float().mean() > 0.99


def test_indexer_and_candidates(rows):
    arch, record = rows.arch, rows.model.network.records.index_key
    for layer in arch.index_source_layer_ids:
        queries, weights = rows.seen["index_q", layer], rows.seen["index_w", layer]
        codes, scales = queries.split((record.code_bytes, record.scale_bytes), dim=-1)
        rows.check(f"index_q.{layer}.q", codes)
        rows.check(f"index_q.{layer}.s", scales)
        rows.check(f"index_w.{layer}", weights)
        role = arch.layers[layer]
        keys = rows.golden.records("decode", f"s1.index_k.{role.kv_source}")
        keys = keys[: len(rows.ids) // role.ratio]
        allowed = candidates(rows.seen, arch, len(keys)) if role.mode == "reindex" else None
        scores = head_scores(decode_record(queries, record), weights, keys)
        rows.check(f"index_score.{layer}", masked(scores, rows.positions, role.ratio, allowed))
        rows.check(f"select.{layer}", rows.seen["select", layer])
    rows.check("candidates", candidates(rows.seen, arch, len(rows.ids)))


@pytest.mark.parametrize("layer", [2, 4, 5, 7, 8])
def test_scores_and_selections_of_the_long_prompt(rows, layer):
    """Recomputed from stored queries, weights and keys; the selection from the stored scores."""
    golden, arch = rows.golden, rows.arch
    positions = golden.tensor("trace_s2", "s2.score_rows").long()
    place = torch.searchsorted(golden.tensor("trace_s2", "s2.rows").long(), positions)
    role = arch.layers[layer]
    rule = CandidateRule(arch.candidate_topk_blocks, arch.candidate_block_size)
    allowed = golden.tensor("trace_s2", "s2.candidates")[place]
    if role.mode != "reindex":
        allowed = None
    stored = golden.tensor("trace_s2", f"s2.index_score.{layer}")
    keys = golden.records("decode", f"s2.index_k.{role.kv_source}")[: stored.shape[1]]
    queries = golden.records("trace_s2", f"s2.index_q.{layer}")
    weights = golden.tensor("trace_s2", f"s2.index_w.{layer}")
    scores = masked(head_scores(queries, weights, keys), positions, role.ratio, allowed)
    golden.check("trace_s2", f"s2.index_score.{layer}", scores, FED)
    chosen = select(
        stored,
        (positions + 1) // role.ratio,
        arch.index_topk,
        blocks=None,
        rule=rule,
        publish=layer == arch.candidate_source_layer_id,
    )
    golden.check("trace_s2", f"s2.select.{layer}", chosen.ids, FED, lambda t: t[place])
    if chosen.blocks is not None:
        mask = block_mask(chosen.blocks, rule, stored.shape[1]).to(torch.uint8)
        golden.check("trace_s2", "s2.candidates", mask, FED, lambda t: t[place])


def test_scale_bytes_are_read_as_powers_of_two(rows):
    """A guard for the tests above: a decoded golden key is code times scale."""
    scales = decode_e8m0(rows.golden.tensor("decode", "s1.index_k.2.s"))
    largest = rows.golden.records("decode", "s1.index_k.2").unflatten(-1, (-1, 32)).abs().amax(-1)
    assert (largest <= 6 * scales).all()
    assert (largest > 2.9 * scales).all()
