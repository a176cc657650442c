"""One request at a time: greedy continuation and scores against plain recomputation."""

import dataclasses

import pytest
import torch

from deepinfer.device import find_device
from deepinfer.errors import NonFiniteError, RequestError
from deepinfer.model.network import Network
from deepinfer.runner.assemble import RowSlice
from tests.engine.sequential import Sequential
from tests.model.networks import network, new_state, run, tokens

CPU = find_device("cpu")


def recomputed(net, ids):
    """Logits of every position, in one pass over all tokens."""
    forward = run(net, new_state(net), [RowSlice(ids, 0, len(ids), 1, (1, 2))])
    return net.logits(forward.hidden)


@pytest.mark.parametrize("mode", ["checkpoint", "noquant"])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_every_token_is_the_likeliest_one_after_those_before_it(mode, chunk):
    net = network(mode)
    ids = tokens(net, 13)
    made, reason = Sequential(net, CPU, chunk=chunk).generate(ids, 9)
    logits = recomputed(net, [*ids, *made])
    expected = logits[len(ids) - 1 : -1].argmax(-1).tolist()
    assert made == expected
    assert (reason, len(made)) == ("length", 9)


def test_an_engine_serves_one_request_after_another_without_a_trace():
    net = network()
    engine = Sequential(net, CPU)
    first, second = tokens(net, 30, 1), tokens(net, 11, 2)
    alone = Sequential(net, CPU).generate(second, 6)
    engine.generate(first, 5)
    assert engine.generate(second, 6) == alone


def test_the_end_token_ends_an_answer():
    net = network()
    ids = tokens(net, 13)
    third = Sequential(net, CPU).generate(ids, 3)[0][2]
    arch = dataclasses.replace(net.arch, eos_token_id=third)
    ending = Network(arch, net.numerics, net.ops, net.weights, None)
    ending.hashes = net.hashes
    made, reason = Sequential(ending, CPU).generate(ids, 9)
    assert made[-1] == third
    assert third not in made[:-1]
    assert reason == "stop"


def test_the_length_limit_counts_prompt_and_output():
    net = network()
    made, reason = Sequential(net, CPU, max_model_len=16).generate(tokens(net, 13), 50)
    assert (len(made), reason) == (3, "length")
    with pytest.raises(RequestError, match="fills the limit of 16"):
        Sequential(net, CPU, max_model_len=16).generate(tokens(net, 16), 1)


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_scores_are_the_log_softmax_of_each_next_token(chunk):
    net = network()
    ids = tokens(net, 21)
    table = torch.log_softmax(recomputed(net, ids).double(), -1)
    expected = [table[i, token].item() for i, token in enumerate(ids[1:])]
    assert Sequential(net, CPU, chunk=chunk).score(ids) == expected
    assert Sequential(net, CPU).score(ids[:1]) == []


def test_bounded_replay_keeps_at_least_a_window_and_a_draft():
    net = network()
    least = net.arch.sliding_window + net.arch.max_draft + 1
    with pytest.raises(RequestError, match=f"at least {least}"):
        Sequential(net, CPU, decoder_keep=least - 1)
    ids = tokens(net, 40)
    short = Sequential(net, CPU, decoder_keep=least, chunk=9).generate(ids, 5)
    assert short == Sequential(net, CPU, decoder_keep=least).generate(ids, 5)
    longer = Sequential(net, CPU, decoder_keep=40).generate(ids, 5)
    assert longer == Sequential(net, CPU).generate(ids, 5)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "empty"),
        ([3, -1], "token -1 at position 1"),
        ([96], "token 96 at position 0 is not between 0 and 95"),
        ([3, 6], "token 6 at position 1 marks an image"),
        ([3] * 33, "33 tokens, the limit is 32"),
    ],
)
def test_a_prompt_that_cannot_be_computed_is_refused_with_the_reason(ids, message):
    engine = Sequential(network(), CPU, max_model_len=32)
    for call in (lambda: engine.generate(ids, 1), lambda: engine.score(ids)):
        with pytest.raises(RequestError, match=message):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_model_len": 0}, "max_model_len 0"), ({"chunk": 0}, "chunk 0")],
)
def test_engine_limits_are_checked(options, message):
    with pytest.raises(RequestError, match=message):
        Sequential(network(), CPU, **options)


def test_max_tokens_below_one_is_refused():
    with pytest.raises(RequestError, match="max_tokens 0"):
        Sequential(network(), CPU).generate([3, 4], 0)


def test_logits_that_are_not_finite_end_the_request():
    net = network()
    damaged = dataclasses.replace(net.weights, norm=torch.full_like(net.weights.norm, torch.nan))
    broken = Network(net.arch, net.numerics, net.ops, damaged, None)
    broken.hashes = net.hashes
    for call in (
        lambda: Sequential(broken, CPU).generate([3, 4], 2),
        lambda: Sequential(broken, CPU).score([3, 4]),
    ):
        with pytest.raises(NonFiniteError, match="weights are damaged"):
            call()
