"""Branches of captured graphs, and outside of captures."""

import pytest
import torch

from deepinfer.device import Branch, find_device


def _work(x: torch.Tensor, branch: Branch) -> torch.Tensor:
    for _ in range(4):
        beside = branch.start(x.device, lambda x=x: (x @ x).sin())
        x = x.cos() @ x
        x = x + beside()
    return x


@pytest.mark.gpu
def test_a_captured_branch_gives_the_bits_of_direct_work_at_every_replay():
    device = find_device("cuda")
    x = torch.randn(512, 512, device=device.torch)
    for _ in range(2):
        _work(x, Branch())  # libraries start before the capture
    graph, out = device.graphs().capture(lambda: _work(x, Branch()))
    for seed in range(5):
        x.copy_(torch.randn(512, 512, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        expected = _work(x, Branch())
        assert torch.equal(out, expected)
        out.fill_(float("nan"))


def test_work_beside_is_done_at_once_outside_of_a_capture():
    order: list[str] = []
    join = Branch().start(torch.device("cpu"), lambda: order.append("beside"))
    order.append("after")
    join()
    assert order == ["beside", "after"]
