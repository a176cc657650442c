"""The operations that are chosen by default, on golden prompts: equal to the references by bit."""

from dataclasses import fields

import pytest
import torch

from tests.golden.runs import Model, Session

pytestmark = pytest.mark.golden


@pytest.mark.parametrize(("config", "sequence"), [("a", "s2"), ("b", "s2"), ("d", "s1")])
def test_the_default_operations_give_the_bits_of_the_references(config, sequence, runs):
    reference = runs.model(config, "checkpoint")
    chosen = Model(reference.golden, "checkpoint", "auto")
    ops = chosen.network.ops
    classes = {f.name: getattr(ops, f.name).implementation.order_class for f in fields(ops)}
    assert set(classes.values()) == {"reference"}, classes
    prompt = reference.prompt(sequence)
    found = []
    for model in (reference, chosen):
        session = Session(model.network, tokens=len(prompt) + 2)
        hidden = [session.feed(tokens).hidden for tokens in (prompt, [5], [9])]
        logits = model.network.logits(torch.cat(hidden))
        state = session.state  # page 0 and slot 0 take writes that go nowhere
        found.append((logits, state.pages[1:], state.slots[1:], session.draft(7).logits))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
