"""The network over batches, chunks and bounded replay: same numbers however they are computed."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.model.drafter import Drafter
from deepinfer.runner.assemble import RowSlice
from tests.model.networks import last_logits, network, new_state, run, tokens

MODES = ("checkpoint", "noquant")
PAGES = (3, 5)  # any two, not in order of anything


def chunked(net, ids, cuts, state, slot=1, start=0):
    """Prefill `ids` in chunks that end at `cuts`; hidden rows of all chunks."""
    bounds = [0, *sorted(set(cuts)), len(ids)]
    rows = [
        run(net, state, [RowSlice(ids, low, high - low, slot, PAGES, start)])
        for low, high in itertools.pairwise(bounds)
        if high > low
    ]
    return torch.cat([row.hidden for row in rows])


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 39), max_size=5), st.integers(0, 3))
def test_chunks_do_not_change_a_bit(mode, cuts, seed):
    net = network(mode)
    ids = tokens(net, 40, seed)
    whole, parts = new_state(net), new_state(net)
    expected = chunked(net, ids, [], whole)
    assert torch.equal(chunked(net, ids, cuts, parts), expected)
    assert torch.equal(parts.pages[1:], whole.pages[1:])
    window = net.arch.sliding_window
    rows = torch.arange(40 - window, 40) % net.arch.ring_rows
    for left, right in zip(parts.windows, whole.windows, strict=True):
        assert torch.equal(left[1, rows], right[1, rows])


@pytest.mark.parametrize("mode", MODES)
def test_one_token_at_a_time_equals_one_prefill(mode):
    net = network(mode)
    ids = tokens(net, 25)
    expected = chunked(net, ids, [], new_state(net))
    assert torch.equal(chunked(net, ids, range(1, 25), new_state(net)), expected)


@pytest.mark.parametrize("mode", MODES)
def test_company_does_not_change_a_row(mode):
    net = network(mode)
    prompts = [tokens(net, count, seed) for seed, count in enumerate((17, 1, 30))]
    pages = [(1, 2), (7, 8), (4, 3)]
    together = new_state(net)
    slices = [RowSlice(ids, 0, len(ids), i + 1, pages[i]) for i, ids in enumerate(prompts)]
    joint = run(net, together, slices).hidden.split([len(ids) for ids in prompts])
    for i, ids in enumerate(prompts):
        alone = run(net, new_state(net), [RowSlice(ids, 0, len(ids), 1, (1, 2))])
        assert torch.equal(alone.hidden, joint[i])
    # A decode row beside a prefill slice and beside nothing.
    grown = [*prompts[0], 9]
    decode = RowSlice(grown, 17, 1, 1, pages[0])
    other = tokens(net, 12, 9)
    mixed = run(net, together, [decode, RowSlice(other, 0, 12, 3, (9, 10))])
    assert torch.equal(mixed.hidden[0], chunked(net, grown, [17], new_state(net))[-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("start", [1, 15, 28])
def test_masked_and_compact_replay_agree_and_survive_decoding(mode, start):
    net = network(mode)
    ids = tokens(net, 40)
    masked, compact = new_state(net), new_state(net)
    whole = RowSlice(ids, 0, 40, 1, PAGES, start)
    left = run(net, masked, [whole], compact=False).hidden[start:]
    right = run(net, compact, [whole]).hidden
    assert torch.equal(left, right)
    assert torch.equal(chunked(net, ids, [7, 16, 33], new_state(net), start=start), right)
    grown = [*ids, 5]
    step = RowSlice(grown, 40, 1, 1, PAGES, start)
    assert torch.equal(run(net, masked, [step]).hidden, run(net, compact, [step]).hidden)


def test_replay_bound_changes_the_tail_when_it_bites():
    net = network("noquant")
    ids = tokens(net, 40)
    full = chunked(net, ids, [], new_state(net))
    tail = chunked(net, ids, [], new_state(net), start=36)
    assert not torch.equal(full[36:], tail)


@pytest.mark.parametrize("mode", MODES)
def test_bytes_that_nobody_owns_are_never_read(mode):
    net = network(mode)
    ids = tokens(net, 30)
    clean, dirty = new_state(net), new_state(net)
    dirty.pages.fill_(255)
    dirty.slots.fill_(255)
    expected = chunked(net, ids, [4, 11], clean)
    assert torch.equal(chunked(net, ids, [4, 11], dirty), expected)
    assert bool(torch.isfinite(expected).all())


@pytest.mark.parametrize("mode", MODES)
def test_other_requests_state_is_left_alone(mode):
    net = network(mode)
    state = new_state(net)
    state.pages.fill_(17)
    state.slots.fill_(17)
    run(net, state, [RowSlice(tokens(net, 30), 0, 30, 2, PAGES)])
    untouched = [p for p in range(1, len(state.pages)) if p not in PAGES]
    assert bool((state.pages[untouched] == 17).all())
    assert bool((state.slots[[1, 3]] == 17).all())


def seed(drafter, forward, state):
    assert forward.features is not None
    drafter.seed(forward.features, forward.batch, state)


@pytest.mark.parametrize("mode", MODES)
def test_drafts_do_not_depend_on_company_or_chunks(mode):
    net = network(mode)
    drafter = Drafter(net)
    prompts = [tokens(net, 20, 1), tokens(net, 9, 2)]
    together = new_state(net)
    for i, ids in enumerate(prompts):
        forward = run(net, together, [RowSlice(ids, 0, len(ids), i + 1, (2 * i + 1, 2 * i + 2))])
        seed(drafter, forward, together)
    anchors = torch.tensor([19, 8])
    slots, newest = torch.tensor([1, 2]), torch.tensor([11, 12])
    joint = drafter.draft(newest, anchors, slots, torch.zeros(2, dtype=torch.int64), together)
    for i, ids in enumerate(prompts):
        state = new_state(net)
        for low in range(0, len(ids), 4):
            part = RowSlice(ids, low, min(4, len(ids) - low), 3, PAGES)
            forward = run(net, state, [part])
            seed(drafter, forward, state)
        alone = drafter.draft(
            newest[i : i + 1], anchors[i : i + 1], torch.tensor([3]), torch.tensor([0]), state
        )
        assert torch.equal(alone.tokens[0], joint.tokens[i])
        assert torch.equal(alone.confidence[0], joint.confidence[i])


@pytest.mark.parametrize(("engram", "draft"), [(False, True), (True, False), (False, False)])
def test_parts_may_be_absent(engram, draft):
    net = network(engram=engram, draft=draft)
    forward = run(net, new_state(net), [RowSlice(tokens(net, 12), 0, 12, 1, PAGES)])
    assert bool(torch.isfinite(last_logits(net, forward)).all())
    assert (forward.features is None) is not draft
    if not draft:
        with pytest.raises(ValueError, match="no draft stages"):
            Drafter(net)
