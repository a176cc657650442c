"""Small kernels of a step against their references: angles, ring writes, means of streams."""

import pytest
import torch

from deepinfer.ops.add_outputs import add_outputs
from deepinfer.ops.angles import angles
from deepinfer.ops.batch import RingPlaces
from deepinfer.ops.embed_streams import embed_streams
from deepinfer.ops.engram_values import engram_values
from deepinfer.ops.rotation import frequencies
from deepinfer.ops.stream_mean import stream_mean
from deepinfer.ops.write_records import write_records

pytest.importorskip("triton")
from deepinfer.ops.add_outputs import triton as sum_kernel
from deepinfer.ops.angles import triton as angle_kernel
from deepinfer.ops.embed_streams import triton as embed_kernel
from deepinfer.ops.engram_values import triton as value_kernel
from deepinfer.ops.stream_mean import triton as mean_kernel
from deepinfer.ops.write_records import triton as ring_kernel

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("half", [8, 32])
def test_angles_are_those_of_the_reference_and_of_a_row_alone(gpu, half):
    freqs = frequencies(2 * half, 10000.0).to(gpu.device)
    positions = torch.tensor([0, 1, 5, 127, 4096, 131_071, 1_048_575] * 9, device=gpu.device)
    found, wanted = angle_kernel.angles(positions, freqs), angles.reference(positions, freqs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=6e-8)  # one step between 0.5 and 1
    for row in range(7):
        alone = angle_kernel.angles(positions[row : row + 1], freqs)
        assert torch.equal(alone.cos[0], found.cos[row])
        assert torch.equal(alone.sin[0], found.sin[row])
    assert angle_kernel.angles(positions[:0], freqs).cos.shape == (0, half)


@pytest.mark.parametrize("size", [66, 528])
def test_records_land_where_they_belong_and_nowhere_else(gpu, size):
    pool = torch.randint(0, 256, (9, 3 * 140 * size + 64), dtype=torch.uint8, device=gpu.device)
    other = pool.clone()
    ring, wanted = (p[:, 140 * size : 280 * size].unflatten(1, (140, size)) for p in (pool, other))
    records = torch.randint(0, 256, (70, size), dtype=torch.uint8, device=gpu.device)
    place = torch.randperm(9 * 140, device=gpu.device)[:70]
    places = RingPlaces(place // 140, place % 140)
    ring_kernel.write_records(ring, places, records)
    write_records.reference(wanted, places, records)
    assert torch.equal(pool, other)
    ring_kernel.write_records(ring, RingPlaces(place[:0], place[:0]), records[:0])
    assert torch.equal(pool, other)


@pytest.mark.parametrize(("count", "width"), [(4, 5120), (2, 96)])
def test_means_are_those_of_the_reference(gpu, count, width):
    streams = torch.randn(70, count, width, device=gpu.device).to(torch.bfloat16) * 3
    torch.full((1 << 24,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the output
    found, wanted = mean_kernel.stream_mean(streams), stream_mean.reference(streams)
    assert (found != wanted).float().mean() < 1e-3  # sums of four in another order
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=1e-6)
    assert torch.equal(mean_kernel.stream_mean(streams[9:10])[0], found[9])


@pytest.mark.parametrize("width", [5120, 100])
def test_sums_are_those_of_the_reference(gpu, width):
    one, two = torch.randn(2, 70, width, device=gpu.device)
    for dtype in (torch.bfloat16, torch.float32):
        torch.full((1 << 24,), 255, dtype=torch.uint8, device=gpu.device)
        found = sum_kernel.add_outputs(one, two, dtype=dtype)
        assert torch.equal(found, add_outputs.reference(one, two, dtype=dtype))
        few = sum_kernel.add_outputs(one[:3], two[:3].to(dtype), dtype=dtype)
        assert torch.equal(few, add_outputs.reference(one[:3], two[:3].to(dtype), dtype=dtype))


@pytest.mark.parametrize(("count", "width"), [(4, 5120), (2, 96)])
def test_streams_begin_as_in_the_reference(gpu, count, width):
    table = torch.randn(300, width, device=gpu.device).to(torch.bfloat16)
    ids = torch.randint(-1, 300, (70, 4), device=gpu.device)
    torch.full((1 << 24,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the output
    for some in (ids[:, 0], ids[:, 3].contiguous(), ids[:0, 0]):
        for dtype in (torch.bfloat16, torch.float32):
            found = embed_kernel.embed_streams(some, table, streams=count, dtype=dtype)
            wanted = embed_streams.reference(some, table, streams=count, dtype=dtype)
            assert torch.equal(found.streams, wanted.streams)
            assert torch.equal(found.pre, wanted.pre)


@pytest.mark.parametrize(("rows", "width"), [(24, 256), (3, 32)])
def test_values_of_rows_are_those_of_the_reference(gpu, rows, width):
    codes = torch.randint(0, 256, (70, rows, width), device=gpu.device).to(torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0  # no code of NaN
    scale = torch.randint(0, 255, (70, rows, width // 32), device=gpu.device).to(torch.uint8)
    torch.full((1 << 24,), 255, dtype=torch.uint8, device=gpu.device)  # poison of the output
    for some in (slice(0, 70), slice(7, 8), slice(0, 0)):
        for dtype in (torch.bfloat16, torch.float32):
            found = value_kernel.engram_values(codes[some], scale[some], dtype=dtype)
            wanted = engram_values.reference(codes[some], scale[some], dtype=dtype)
            assert torch.equal(found, wanted)
