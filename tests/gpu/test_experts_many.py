"""Expert tiles with a warp that copies: the bits of every other tile, whatever an expert gets."""

import pytest
import torch
from torch import Tensor

from deepinfer.bench import cases
from deepinfer.ops.experts.packing import PackedExperts, pack
from deepinfer.ops.experts.plan import Tile, Tiles, choose

pytest.importorskip("triton")
from deepinfer.ops.experts import triton as kernels

pytestmark = pytest.mark.gpu
LIMIT = 10.0
HIDDEN, INNER = 1280, 768
NARROW = Tiles(Tile(128, 16, 4, 4), Tile(128, 16, 4, 4))
COPIED = {tiles.gate_up.tokens: tiles for tiles in (choose(192, 3, 3), choose(4096, 6, 6))}


def both(ids: Tensor, weights: PackedExperts, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Results with `tiles`, which are written over NaN bits, and with narrow ones."""
    x, share = cases.activations(len(ids), HIDDEN, ids.device), torch.rand(ids.shape).to(ids.device)
    wanted = kernels.launch(x, ids, share, weights, LIMIT, NARROW)
    torch.full((2**28,), 255, dtype=torch.uint8, device="cuda")
    return kernels.launch(x, ids, share, weights, LIMIT, tiles), wanted


@pytest.mark.parametrize("tokens", [1, 63, 300, 2048])
@pytest.mark.parametrize("width", COPIED)
def test_tiles_with_a_warp_that_copies_change_no_bits(gpu, tokens, width):
    weights = pack(cases.expert_weights(9, HIDDEN, INNER, gpu.device))
    ids, _ = cases.routing(tokens, 9, 4, gpu.device)
    torch.testing.assert_close(*both(ids, weights, COPIED[width]), rtol=0, atol=0)


@pytest.mark.parametrize("width", COPIED)
def test_experts_may_get_any_number_of_rows(gpu, width):
    weights = pack(cases.expert_weights(11, HIDDEN, INNER, gpu.device))
    rows = torch.tensor([1, 63, 64, 65, 0, 127, 128, 129, 0, 193, 257])  # of each expert
    ids = torch.arange(11).repeat_interleave(rows)
    ids = ids[torch.randperm(len(ids))].to(gpu.device)
    ids = torch.stack((ids, torch.full_like(ids, -1)), 1)
    torch.testing.assert_close(*both(ids, weights, COPIED[width]), rtol=0, atol=0)


def test_a_program_may_have_nothing_to_do(gpu):
    weights = pack(cases.expert_weights(3, HIDDEN, INNER, gpu.device))
    ids = torch.full((200, 3), -1, device=gpu.device)
    found, _ = both(ids, weights, COPIED[128])
    assert bool((found == 0).all())


@pytest.mark.parametrize(("experts", "tokens"), [(3, 192), (3, 320), (3, 700), (48, 2100)])
def test_true_sizes_have_the_bits_of_narrow_tiles(gpu, experts, tokens):
    weights = pack(cases.expert_weights(experts, 5120, 2304, gpu.device))
    x = cases.activations(tokens, 5120, gpu.device)
    ids, share = cases.routing(tokens, experts, 3, gpu.device)
    tiles = choose(tokens, 3, experts)
    assert tiles.copied
    wanted = kernels.launch(x, ids, share, weights, LIMIT, NARROW)
    torch.full((2**28,), 255, dtype=torch.uint8, device="cuda")
    found = kernels.launch(x, ids, share, weights, LIMIT, tiles)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
