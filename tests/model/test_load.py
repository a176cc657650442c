"""What loading says of weights that a packing had to change."""

import dataclasses

import pytest
import torch

from deepinfer.bench import cases
from deepinfer.model import load
from deepinfer.model.load import LoadOptions, load_network, resident_bytes, rounded_groups
from deepinfer.ops.experts import ExpertWeights
from deepinfer.ops.experts.packing import Rounded, pack
from deepinfer.ops.formats import Fp4Weight
from tests.model.networks import hash_map

CPU = torch.device("cpu")


@dataclasses.dataclass
class Layer:
    routed: object
    name: str = "layer"


def far_apart(groups: int) -> ExpertWeights:
    """Experts of which so many groups lie 2^20 below the rest of their rows."""
    weights = cases.expert_weights(2, 256, 128, CPU, scales=(120, 121))
    assert isinstance(weights.w2, Fp4Weight)
    scale = weights.w2.scale.clone()
    scale[1, :groups, 1] = 100
    codes = weights.w2.codes.clone()
    codes[1, :groups, 16:32] = 0x77
    codes[1, :groups, 0] = 0x77
    return weights._replace(w2=Fp4Weight(codes, scale))


def test_rounded_groups_of_all_layers_are_counted_and_are_no_bytes():
    packed = [pack(far_apart(groups)) for groups in (3, 0, 5)]
    tree = Layer((Layer(packed[0]), (packed[1], Layer(packed[2])), 7, "text", None))
    found = rounded_groups(tree)
    assert (found.groups, found.of) == (8, 3 * 2 * (256 * 8 + 256 * 4))
    assert 0 < found.error <= 2.0**-12
    bare = [dataclasses.asdict(Layer(p))["routed"][:3] for p in packed]
    assert resident_bytes(tree) == sum(resident_bytes(tuple(parts)) for parts in bare)
    assert rounded_groups(Layer((torch.zeros(3), 1))) == (0, 0, 0.0)


@pytest.mark.parametrize("groups", [0, 12_345])
def test_loading_warns_of_rounded_weights_and_of_nothing_else(
    groups, directory, monkeypatch, caplog
):
    monkeypatch.setattr(load, "rounded_groups", lambda _: Rounded(groups, 10**9, 2.0**-14.5))
    monkeypatch.setattr(load, "_engram_map", lambda _, arch: hash_map(arch))
    load_network(directory, CPU, "cpu", LoadOptions(load_format="dummy"))
    warned = [record.message for record in caplog.records]
    assert warned == (
        [
            "experts: 12,345 of 1,000,000,000 groups of FP4 weights rounded: their scale is more "
            "than 2^11 below the largest of their row; at most by 2^-14.5 of that row's largest "
            "weight. For exact weights name another implementation of experts (`deepinfer ops`)."
        ]
        if groups
        else []
    )
