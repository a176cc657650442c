"""Each mistake that a plausible port makes, switched on once: the golden comparison must notice.

Without quantisers, on the last prompt rows; the sizes are those of the golden README 5.5 and 6.
"""

import copy
from dataclasses import replace

import pytest
import torch

from deepinfer.arch import PAGE_TOKENS
from deepinfer.model.block import Block
from deepinfer.model.numerics import NOQUANT
from deepinfer.ops.engram_gate import EngramGate
from deepinfer.ops.formats import decode_parts, decode_record
from deepinfer.ops.index_select.reference import head_scores, select
from deepinfer.ops.mhc_collapse import mhc_collapse
from deepinfer.ops.rotation import frequencies, rotate
from tests.golden.runs import Session

pytestmark = pytest.mark.golden


def altered(network, **changed):
    """The network with some operations wrapped: name -> function(original, *args, **kwargs)."""
    ops = network.ops

    def wrapped(name, change):
        original = getattr(ops, name)
        return lambda *args, **kwargs: change(original, *args, **kwargs)

    other = copy.copy(network)
    other.ops = replace(ops, **{name: wrapped(name, change) for name, change in changed.items()})
    other.block = Block(network.arch, other.ops, NOQUANT)
    return other


def same_sub_layer_pre(op, streams, pending, pre, weights, **options):
    """Collapse with the coefficients just computed instead of the previous ones."""
    found = op(streams, pending, pre, weights, **options)
    hidden = mhc_collapse.reference(found.streams, found.pre, weights.norm, options["eps"]).normed
    return found._replace(hidden=hidden)


def transposed_comb(op, *args, **options):
    found = op(*args, **options)
    return found._replace(comb=found.comb.mT)


def no_sink(op, q, records, ring, ids, pages, sink, batch, by, **options):
    none = torch.full_like(sink, -torch.inf)
    return op(q, records, ring, ids, pages, none, batch, by, **options)


def no_inverse_rotation(op, q, records, ring, ids, pages, sink, batch, by, **options):
    return rotate(op(q, records, ring, ids, pages, sink, batch, by, **options), by)


def normalised_heads(op, *args, **options):
    found = op(*args, **options)
    scale = torch.rsqrt(found.q.square().mean(-1, keepdim=True) + options["eps"])
    return found._replace(q=found.q * scale)


def short_window(op, *args, **options):
    return op(*args, **{**options, "window": options["window"] - 1})


def candidates_ignored(op, queries, batch, pages, blocks, **options):
    return op(queries, batch, pages, None, **options)


def no_engram(op, streams, *args, **options):
    return EngramGate(streams, op(streams, *args, **options).gate)


PREFILL = {
    "pre-mix of the same sub-layer": ({"mhc_boundary": same_sub_layer_pre}, 0.20, 0.17),
    "transposed comb": ({"mhc_boundary": transposed_comb}, 0.16, 0.03),
    "no sink": ({"sparse_attention": no_sink}, 0.21, 0.14),
    "no inverse rotation": ({"sparse_attention": no_inverse_rotation}, 0.33, 0.40),
    "normalised query heads": ({"attention_inputs": normalised_heads}, 0.26, 0.17),
    "window one short": ({"sparse_attention": short_window}, 0.27, 0.21),
    "candidates ignored": ({"index_select": candidates_ignored}, 0.11, 0.12),
    "no Engram": ({"engram_gate": no_engram}, 0.41, 0.36),
}
OF_D = {"no inverse rotation": 0.19, "window one short": 0.07, "candidates ignored": 0.03}
NEAR = 0.15  # how far the size of an effect may lie from the stated one, plus its last digit


def refused(golden, name, value):
    """The comparison fails; returns the relative size of the difference."""
    with pytest.raises(AssertionError, match="FAILED"):
        golden.check("noquant", name, value, "noquant")
    reference = golden.tensor("noquant", name)
    return float((value - reference).square().mean().sqrt() / reference.std())


def about(size):
    return pytest.approx(size, rel=NEAR, abs=0.006)


def prefill_logits(model, network, sequence):
    prompt = model.prompt(sequence)
    rows = model.golden.tensor("prefill", f"{sequence}.rows").long()
    return network.logits(Session(network, tokens=len(prompt)).feed(prompt).hidden[rows])


@pytest.mark.parametrize("config", ["a", "b"])
@pytest.mark.parametrize("mistake", PREFILL)
def test_a_mistake_is_noticed(config, mistake, runs):
    changed, *sizes = PREFILL[mistake]
    model = runs.model(config, "noquant")
    logits = prefill_logits(model, altered(model.network, **changed), "s2")
    assert refused(model.golden, "s2.logits", logits) == about(sizes["ab".index(config)])


@pytest.mark.parametrize("mistake", OF_D)
def test_a_mistake_is_noticed_at_real_head_sizes(mistake, runs):
    model = runs.model("d", "noquant")
    logits = prefill_logits(model, altered(model.network, **PREFILL[mistake][0]), "s1")
    assert refused(model.golden, "s1.logits", logits) == about(OF_D[mistake])


def test_rotation_without_yarn_is_noticed(runs):
    model = runs.model("d", "noquant")
    network = altered(model.network)
    network.compressed_freqs = frequencies(
        model.arch.qk_rope_head_dim, model.arch.compress_rope_theta
    )
    logits = prefill_logits(model, network, "s1")
    assert refused(model.golden, "s1.logits", logits) == about(0.15)


def foreign_keys(state, owner):
    """Steps that close no group score against the last owner's keys, as stale pointers would."""

    def change(op, queries, batch, pages, blocks, **options):
        closes = (batch.positions + 1) % pages.ratio == 0
        if pages.ratio == 1 or len(batch.positions) > 1 or closes:
            return op(queries, batch, pages, blocks, **options)
        views, record = state().owners[owner], options["record"]
        visible = (batch.positions + 1) // pages.ratio
        table = batch.page_table[0, : -(-batch.max_len // PAGE_TOKENS)]
        codes, scales = views.key_codes[table].flatten(0, 1), views.key_scales[table].flatten(0, 1)
        keys = decode_parts(codes, scales, record.format)[: int(visible)]
        scores = head_scores(decode_record(queries.records, record), queries.weights, keys)
        return select(
            scores, visible, options["topk"], blocks=None, rule=options["rule"], publish=False
        )

    return change


@pytest.mark.parametrize(("config", "size"), [("a", 0.29), ("b", 0.20)])
def test_foreign_index_keys_at_decode_are_noticed(config, size, runs):
    model, good = runs.model(config, "noquant"), runs.noquant(config, "s2")
    prompt, sessions = model.prompt("s2"), []
    last_owner = model.arch.kv_source_layer_ids[-1]
    change = foreign_keys(lambda: sessions[0].state, last_owner)
    network = altered(model.network, index_select=change)
    sessions.append(Session(network, tokens=len(prompt) + len(good.tokens)))
    sessions[0].feed(prompt)
    logits = [network.logits(sessions[0].feed([token]).hidden)[0] for token in good.tokens]
    assert refused(model.golden, "s2.decode.logits", torch.stack(logits)) == about(size)


def test_an_unaltered_copy_passes(runs):
    model = runs.model("a", "noquant")
    network = altered(model.network, mhc_boundary=lambda op, *args, **options: op(*args, **options))
    logits = prefill_logits(model, network, "s2")
    model.golden.check("noquant", "s2.logits", logits, "noquant")
