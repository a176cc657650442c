"""The reference network on an accelerator: golden values, and the same bits in any company."""

import pytest
import torch
from safetensors.torch import load_file

from deepinfer.model.load import LoadOptions, load_network
from deepinfer.model.state import State
from deepinfer.runner.assemble import RowSlice
from tests.model.networks import network, new_state, run, tokens

pytestmark = pytest.mark.gpu
MODES = ("checkpoint", "noquant")
PAGES = tuple(range(1, 20))


def prefill(net, ids):
    state = State.allocate(net.arch, net.records, pages=20, slots=2, device=net.device)
    return state, run(net, state, [RowSlice(ids, 0, len(ids), 1, PAGES)])


@pytest.fixture(scope="module")
def golden_net(golden_dir, gpu):
    options = LoadOptions(numerics="noquant", ops={"*": "reference"})
    return load_network(golden_dir / "config-d" / "checkpoint", gpu.device, gpu.arch, options)


@pytest.mark.golden
@pytest.mark.parametrize("sequence", ["s0", "s1", "s2"])
def test_golden_config_d_on_the_device(golden_dir, golden_net, gpu, sequence):
    directory, net = golden_dir / "config-d", golden_net
    prompt = load_file(directory / "prefill.safetensors")
    stored = load_file(directory / "noquant.safetensors")
    ids = prompt[f"{sequence}.input_ids"].tolist()
    state, forward = prefill(net, ids)
    rows = prompt[f"{sequence}.rows"].long().to(gpu.device)
    limit = 5e-3 if sequence == "s2" else 1e-3
    found = net.logits(forward.hidden[rows]).cpu()
    assert (found - stored[f"{sequence}.logits"]).abs().max() < limit
    known = list(ids)
    expected = stored[f"{sequence}.decode.tokens"].tolist()
    hidden = forward.hidden[-1:]
    for token in expected:
        assert int(net.logits(hidden).argmax(-1)) == token
        known.append(token)
        step = RowSlice(known, len(known) - 1, 1, 1, PAGES)
        hidden = run(net, state, [step]).hidden


@pytest.mark.parametrize("mode", MODES)
def test_chunks_and_company_do_not_change_a_bit(gpu, mode):
    net = network(mode, device=gpu.device)
    ids, other = tokens(net, 40), tokens(net, 23, 1)
    whole = run(net, new_state(net), [RowSlice(ids, 0, 40, 1, (1, 2))]).hidden
    state = new_state(net)
    parts = [
        run(net, state, [RowSlice(ids, low, min(9, 40 - low), 1, (1, 2))]).hidden
        for low in range(0, 40, 9)
    ]
    assert torch.equal(torch.cat(parts), whole)
    pair = [RowSlice(other, 0, 23, 2, (5, 6)), RowSlice(ids, 0, 40, 1, (1, 2))]
    assert torch.equal(run(net, new_state(net), pair).hidden[23:], whole)


@pytest.mark.parametrize("mode", MODES)
def test_the_device_gives_the_numbers_of_the_cpu(gpu, mode):
    ids = tokens(network(mode), 40)
    slices = [RowSlice(ids, 0, 40, 1, (1, 2))]
    here, there = (network(mode, device=d) for d in (gpu.device, torch.device("cpu")))
    left = run(here, new_state(here), slices).hidden.cpu().float()
    right = run(there, new_state(there), slices).hidden.float()
    if mode == "noquant":
        torch.testing.assert_close(left, right, rtol=0, atol=1e-4)
    else:  # last-bit differences of cos, exp and rsqrt may flip a code now and then
        assert (left == right).all(1).float().mean() > 0.5
