"""What is taken over from earlier prompts changes no bit, and what must not be read is not."""

import dataclasses
import functools

import pytest
import torch

from deepinfer.request import SamplingParams
from deepinfer.runner.assemble import RowSlice
from deepinfer.scheduler import Caching
from tests.engine.engines import LIMITS, run_all, service
from tests.model.networks import network, new_state, run, tokens

ARCH = network().arch
KEEP, WINDOW = ARCH.decoder_keep, ARCH.sliding_window
BOUNDARY = ARCH.boundary_layer or 0
REPLAY = BOUNDARY * (WINDOW - 1)  # rows that make the encoder's windows right
WIDE = dataclasses.replace(
    LIMITS, max_model_len=520, num_pages=60, max_num_batched_tokens=300, decoder_keep=KEEP
)
EXACT = Caching(first_key=b"exact", replay=REPLAY)
KEPT = Caching(first_key=b"exact", replay=10_000, snapshots=4)
OFF = Caching(first_key=b"exact", replay=len(ARCH.layers) * (WINDOW - 1))
PARAMS = SamplingParams(max_tokens=5, temperature=0.8, seed=3, logprobs=4)


@functools.cache
def prompts():
    net = network()
    head, other = tokens(net, 300, 1), tokens(net, 140, 2)
    long = tokens(net, 260, 5)
    return [
        head,
        head,
        [*head[:256], *other],
        [*head[:129], *other],
        [*head, *other],
        long[:256],
        long,
        long[:130],
    ]


def answers(limits, *, waves=2, **options):
    """Completions of all prompts, added in waves so that later ones find earlier ones' pages."""
    engine = service("checkpoint", limits, **options)
    outputs = []
    for _ in range(waves):
        outputs += run_all(engine, prompts(), [PARAMS] * len(prompts()))
    return outputs, engine.core.scheduler.snapshot()


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.error is None
        assert one.outputs == other.outputs


@functools.cache
def without(keep):
    return answers(dataclasses.replace(WIDE, decoder_keep=keep))[0]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("pages", "budget"), [(60, 300), (60, 64), (9, 300)])
@pytest.mark.parametrize(
    ("caching", "keep"), [(EXACT, KEEP), (KEPT, KEEP), (OFF, None)], ids=["exact", "kept", "off"]
)
def test_hits_change_no_bit(caching, keep, pages, budget, ahead):
    limits = dataclasses.replace(
        WIDE, caching=caching, decoder_keep=keep, num_pages=pages, max_num_batched_tokens=budget
    )
    found, counters = answers(limits, async_scheduling=ahead)
    same(found, without(keep))
    if pages == 60:
        assert counters.prompt_tokens_cached > 1000
        assert max(output.num_cached_tokens for output in found) >= 256
    else:  # pages are given up between and within the waves
        assert counters.prompt_tokens_cached > 0
        assert counters.pages_cached <= 9


@pytest.mark.parametrize(
    "generated",
    [1, 30, pytest.param(50, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("caching", [None, EXACT, KEPT], ids=["none", "exact", "kept"])
def test_a_request_resumes_where_it_was(caching, generated):
    net = network()
    asked = [tokens(net, 150, i) for i in range(2)]
    params = SamplingParams(
        max_tokens=generated + 9, ignore_eos=True, temperature=0.8, seed=5, logprobs=2
    )
    limits = dataclasses.replace(WIDE, caching=caching, num_pages=30)
    expected = run_all(service("checkpoint", limits), asked, [params] * 2)
    engine = service("checkpoint", limits)
    for name, ids in enumerate(asked):
        engine.add(str(name), ids, params)
    done = {}
    while not engine.idle:
        for output in engine.step():
            done[output.request_id] = output
        made = [len(output.outputs[0].token_ids) for output in done.values()]
        if made and max(made) == generated and not engine.core.scheduler.snapshot().preemptions:
            engine.core.scheduler._preempt()
    assert engine.core.scheduler.snapshot().preemptions == 1
    same([done[str(i)] for i in range(2)], expected)


def test_masked_rows_and_removed_rows_give_the_same_bits():
    limits = dataclasses.replace(WIDE, caching=EXACT)
    same(answers(limits, compact=False)[0], without(KEEP))


def test_an_exact_decoder_start_gives_the_numbers_of_running_every_row():
    rows = (len(ARCH.layers) - BOUNDARY) * (WINDOW - 1) + 1
    assert rows < 128
    same(without(rows), without(None))
    fewer = without(rows - 1)
    assert any(a.outputs != b.outputs for a, b in zip(fewer, without(None), strict=True))


def suffix(mode, replayed, *, poison=False, decoder_start=0):
    """Hidden rows and state after a hit of 128 tokens whose windows are replayed."""
    net = network(mode)
    ids = tokens(net, 180, 9)
    state = new_state(net)
    run(net, state, [RowSlice(ids, 0, 180, 1, (1, 2))])
    shared = state.pages[1].clone()
    state.slots[2].fill_(0xFF if poison else 0)
    state.pages[3].fill_(0xFF if poison else 0)
    start = 128 - replayed
    part = RowSlice(ids, start, 180 - start, 2, (1, 3), decoder_start, lower=start, cached=128)
    hidden = run(net, state, [part]).hidden
    assert torch.equal(state.pages[1], shared), "a shared page was written"
    return hidden[-40:], state.pages[3].clone()


@pytest.mark.parametrize("mode", ["checkpoint", "noquant"])
def test_an_exact_replay_has_no_row_to_spare(mode):
    net = network(mode)
    ids, state = tokens(net, 180, 9), new_state(net)
    whole = run(net, state, [RowSlice(ids, 0, 180, 1, (1, 2))]).hidden[-40:]
    needed = len(net.arch.layers) * (WINDOW - 1)
    assert needed % 2 == 0
    hidden, page = suffix(mode, needed)
    assert torch.equal(hidden, whole)
    assert torch.equal(page[: 52 * 8], state.pages[2][: 52 * 8])
    fewer, _ = suffix(mode, BOUNDARY * (WINDOW - 1) - 2)
    assert not torch.equal(fewer, whole)


def test_what_lies_before_the_replay_is_never_read():
    clean, page = suffix("checkpoint", 10)
    dirty, other = suffix("checkpoint", 10, poison=True)
    assert torch.equal(clean, dirty)
    assert torch.isfinite(dirty.float()).all()
    assert torch.equal(page[:8], other[:8])
