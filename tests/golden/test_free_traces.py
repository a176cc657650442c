"""Traces of prompts whose residual streams are not stored: judged from free runs.

No layer can be fed, so the limits are our own: a flipped code upstream may change a few choices.
Configurations a and b run in the library's order (most of the trace is then exact), d in our own.
"""

import pytest

from deepinfer.ops.formats import decode_record
from tests.golden.library_order import library_order
from tests.golden.runs import Session
from tests.golden.traces import candidates, router

pytestmark = pytest.mark.golden

VALUES = {"kind": "rel_rms", "value": 0.15}
WEIGHTS = {"kind": "rel_rms", "value": 0.3}
CHOICES = {"kind": "statistic", "metric": "match_fraction_min", "value": 0.9}
SELECTIONS = {"kind": "statistic", "metric": "overlap_fraction_min", "value": 0.7}
BYTES = {"kind": "statistic", "metric": "mismatch_fraction_max", "value": 0.5}
EXACT = "primary_layer_same_rounding"
CASES = [(config, sequence) for config in "ab" for sequence in ("s0", "s2")]


@pytest.fixture(scope="module", params=CASES, ids=["-".join(case) for case in CASES])
def free(request, runs):
    config, sequence = request.param
    model = runs.model(config, "checkpoint")
    prompt, observed = model.prompt(sequence), {}
    session = Session(model.network, tokens=len(prompt))
    with library_order():
        session.feed(prompt, observed)
    return model.golden, session, observed, sequence


def test_routing(free):
    golden, session, observed, sequence = free
    ids, weights = router(observed, session.network.arch.num_hidden_layers)
    file = f"trace_{sequence}"
    golden.check_by(CHOICES, file, f"{sequence}.router.ids", ids)
    golden.check_by(WEIGHTS, file, f"{sequence}.router.weights", weights)


def test_latents_and_index_keys(free):
    golden, session, _, sequence = free
    for owner in session.network.arch.kv_source_layer_ids:
        for kind, value in (
            ("latent", session.latents(owner)),
            ("index_k", session.index_keys(owner)),
        ):
            golden.check_by(VALUES, f"trace_{sequence}", f"{sequence}.{kind}.{owner}", value)


def test_selections_and_candidates(free):
    golden, session, observed, sequence = free
    file, arch = f"trace_{sequence}", session.network.arch
    for layer in arch.index_source_layer_ids:
        name = f"{sequence}.select.{layer}"
        width = golden.tensor(file, name).shape[1]
        golden.check_by(SELECTIONS, file, name, observed["select", layer][:, :width])
    mask = candidates(observed, arch, len(session.ids))
    golden.check_by(CHOICES, file, f"{sequence}.candidates", mask)


def test_configuration_a_is_exact_in_the_librarys_order(free):
    """All choices and stored entries of s0 and s2, by the limits that hold for fed layers."""
    golden, session, observed, sequence = free
    if golden.manifest["config"] != "a":
        pytest.skip("one code flips in b")
    file, arch = f"trace_{sequence}", session.network.arch
    golden.check(file, f"{sequence}.router.ids", router(observed, len(arch.layers)).ids, EXACT)
    for owner in arch.kv_source_layer_ids:
        golden.check(file, f"{sequence}.latent.{owner}", session.latents(owner), EXACT)
        golden.check(file, f"{sequence}.index_k.{owner}", session.index_keys(owner), EXACT)
    for layer in arch.index_source_layer_ids:
        width = golden.tensor(file, f"{sequence}.select.{layer}").shape[1]
        chosen = observed["select", layer][:, :width]
        golden.check(file, f"{sequence}.select.{layer}", chosen, EXACT)
    mask = candidates(observed, arch, len(session.ids))
    golden.check(file, f"{sequence}.candidates", mask, EXACT)


def test_long_prompt_of_configuration_d(runs):
    golden, run = runs.golden("d"), runs.primary("d", "s2")
    file, arch, observed = "trace_s2", runs.model("d", "checkpoint").arch, run.observed
    rows = golden.tensor(file, "s2.rows").long()
    some = golden.tensor(file, "s2.score_rows").long()
    ids, weights = router(observed, arch.num_hidden_layers)
    golden.check_by(CHOICES, file, "s2.router.ids", ids[:, rows])
    golden.check_by(WEIGHTS, file, "s2.router.weights", weights[:, rows])
    record = run.session.network.records.index_key
    for layer in arch.index_source_layer_ids:
        golden.check_by(SELECTIONS, file, f"s2.select.{layer}", observed["select", layer][rows])
        part = {(n, l): v[some] for (n, l), v in observed.items() if n.startswith("index")}
        golden.check_by(VALUES, file, f"s2.index_w.{layer}", part["index_w", layer])
        queries = part["index_q", layer]
        golden.check_by(BYTES, file, f"s2.index_q.{layer}.q", queries[..., : record.code_bytes])
        golden.check_by(BYTES, file, f"s2.index_q.{layer}.s", queries[..., record.code_bytes :])
        error = decode_record(queries, record) - golden.records(file, f"s2.index_q.{layer}")
        assert (
            error.square().mean().sqrt() < 0.3 * golden.records(file, f"s2.index_q.{layer}").std()
        )
    mask = candidates(observed, arch, golden.tensor(file, "s2.candidates").shape[1])
    golden.check_by(CHOICES, file, "s2.candidates", mask[rows])
