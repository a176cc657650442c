"""The CPU's operations on golden prompts.

Those with float64 sums equal the references by bit; the default ones, with fp32 sums, are near
them and keep their own bits in any chunks.
"""

from dataclasses import fields
from itertools import pairwise

import pytest
import torch

from tests.golden.runs import Model, Session

pytestmark = pytest.mark.golden


@pytest.mark.parametrize(("config", "sequence"), [("a", "s2"), ("b", "s2"), ("d", "s1")])
def test_float64_sums_give_the_bits_of_the_references(config, sequence, runs):
    reference = runs.model(config, "checkpoint")
    chosen = Model(reference.golden, "checkpoint", "cpu")
    ops = chosen.network.ops
    classes = {f.name: getattr(ops, f.name).implementation.order_class for f in fields(ops)}
    assert set(classes.values()) == {"reference"}, classes
    prompt = reference.prompt(sequence)
    found = []
    for model in (reference, chosen):
        session = session_on(model.network, len(prompt) + 2, 0)
        hidden = [session.feed(tokens).hidden for tokens in (prompt, [5], [9])]
        logits = model.network.logits(torch.cat(hidden))
        state = session.state  # page 0 and slot 0 take writes that go nowhere
        found.append((logits, state.pages[1:], state.slots[1:], session.draft(7).logits))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("config", "sequence"), [("a", "s2"), ("b", "s2"), ("d", "s1")])
def test_the_default_operations_stay_near_the_references(config, sequence, runs):
    reference = runs.model(config, "checkpoint")
    chosen = Model(reference.golden, "checkpoint", "auto")
    ops = chosen.network.ops
    classes = {getattr(ops, f.name).implementation.order_class for f in fields(ops)}
    assert classes == {"reference", "cpu_f32"}
    prompt, found = reference.prompt(sequence), []
    for model, cuts in ((reference, ()), (chosen, ()), (chosen, (1, 8, 9, 25))):
        session, hidden = session_on(model.network, len(prompt), 0), []
        for low, high in pairwise((0, *(c for c in cuts if c < len(prompt)), len(prompt))):
            hidden.append(session.feed(prompt[low:high]).hidden)
        found.append(model.network.logits(torch.cat(hidden)))
    expected, whole, chunked = found
    assert torch.equal(whole, chunked)
    # Other last bits flip FP8 and FP4 codes here and there; a wrong operation misses by far.
    error = (whole - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.median()) < 0.1, f"median {error.median():.2e}, most {error.max():.2e}"


@pytest.mark.parametrize(
    ("ops", "numerics"),
    [*((ops, "checkpoint") for ops in ("reference", "cpu", "auto")), ("auto", "noquant")],
)
def test_bytes_that_a_request_did_not_write_are_never_seen(ops, numerics, runs):
    """Whatever lay in pages and slots before: zeros, or bytes that decode to no number."""
    model, found = Model(runs.golden("a"), numerics, ops), []
    for byte in (0x00, 0xFF, 0x7F):
        session = session_on(model.network, 300, byte)
        hidden = [session.feed(tokens).hidden for tokens in (model.prompt("s0"), [7])]
        found.append((torch.cat(hidden), session.draft(5).logits))
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        assert torch.equal(other[1], found[0][1])


def session_on(network, tokens, byte):
    """A session whose pools are filled with `byte`."""
    session = Session(network, tokens=tokens)
    session.state.pages.fill_(byte)
    session.state.slots.fill_(byte)
    return session
