"""Sweeps and the end-to-end bench on the device: steps are captured, and both sides answer."""

import pytest

from deepinfer.bench import decode, end_to_end, prefill
from deepinfer.bench.floors import H200, Floors
from deepinfer.bench.slices import slice_network
from deepinfer.bench.subject import Subject
from deepinfer.device import find_device

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def subject():
    arch = end_to_end.mini_arch()
    device = find_device("cuda")
    return Subject("mini", slice_network(arch, device, {}), device, Floors(arch, H200))


def test_decoding_steps_are_captured_and_every_operation_is_timed(subject):
    work = decode.Workload((2,), 256, 0, uncached=0, steps=8, operations=True)
    point, *operations = decode.decode(subject, work)
    assert point["captured"]
    assert 0 < point["of_floor"] < 1
    names = {record["operation"] for record in operations}
    assert {"experts", "sparse_attention", "index_select", "head"} <= names
    assert all(record["us"] > 0 for record in operations)


def test_prompts_take_longer_than_their_floor(subject):
    for record in prefill.prefill(subject, prefill.Prompts((1, 2), 512, 256, repeats=2)):
        assert 0 < record["of_floor"] < 1


def test_the_engine_outruns_eager_references_and_repeats_itself(subject):
    job = end_to_end.Job(4, prompt=64, output=8)
    record = end_to_end.measure(subject.network.arch, subject.device, job)
    assert record["repeats_equal"]
    assert record["ratio"] > 2
