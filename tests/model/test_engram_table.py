from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import CheckpointError, ConfigError
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.model.dummy import DummySource
from deepinfer.model.engram_table import open_table
from deepinfer.model.source import read
from deepinfer.model.writer import write_checkpoint
from tests.model.tiny import tiny_arch, tiny_config

ARCH = tiny_arch()
ROWS, WIDTH = 211, 64
PLACEMENTS = ("device", "host", "disk")
CPU = torch.device("cpu")


@pytest.fixture
def directory(tmp_path):
    write_checkpoint(tmp_path / "out", ARCH, DummySource(ARCH, 2), tiny_config(), 2)
    return tmp_path / "out"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables") / "out"
    write_checkpoint(directory, ARCH, DummySource(ARCH, 2), tiny_config(), 2)
    source = Checkpoint(directory, ARCH)
    return {placement: open_table(source, 1, placement, CPU) for placement in PLACEMENTS}


row_ids = st.integers(0, ROWS - 1)
shaped = st.one_of(
    st.lists(row_ids, max_size=40).map(lambda ids: torch.tensor(ids, dtype=torch.int64)),
    st.lists(st.lists(row_ids, min_size=3, max_size=3), min_size=1, max_size=9).map(torch.tensor),
    row_ids.map(torch.tensor),
)


@given(shaped)
def test_all_placements_give_the_rows_of_the_table(tables, rows):
    source = DummySource(ARCH, 2)
    weight = read(source, "layers.1.engram.embed.weight")
    scale = read(source, "layers.1.engram.embed.scale")
    for table in tables.values():
        codes, scales = table.fetch(rows)
        assert codes.shape == (*rows.shape, WIDTH)
        assert scales.shape == (*rows.shape, WIDTH // 32)
        assert torch.equal(codes, weight[rows])
        assert torch.equal(scales, scale[rows])


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("row", [-1, ROWS, 1 << 40])
def test_a_row_outside_the_table_is_a_bug_of_the_caller(tables, placement, row):
    with pytest.raises(AssertionError, match=f"table of {ROWS} rows"):
        tables[placement].fetch(torch.tensor([3, row]))


def test_a_source_without_files_cannot_serve_from_disk():
    with pytest.raises(ConfigError, match="disk"):
        open_table(DummySource(ARCH), 1, "disk", CPU)


@pytest.mark.parametrize(("kind", "width"), [("weight", WIDTH), ("scale", WIDTH // 32)])
def test_a_damaged_row_is_found_at_load_or_when_it_is_read(directory, kind, width):
    source = Checkpoint(directory, ARCH)
    name = f"layers.1.engram.embed.{kind}"
    place = source.file_range(name)
    with place.path.open("r+b") as file:
        file.seek(place.offset + 17 * width + 1)
        file.write(b"\xff")
    for placement in ("device", "host"):
        with pytest.raises(CheckpointError, match=rf"{name}.*\[17, 1\]"):
            open_table(source, 1, placement, CPU)
    table = open_table(source, 1, "disk", CPU)
    table.fetch(torch.tensor([16, 18, 0]))
    with pytest.raises(CheckpointError, match=rf"{name}.*\[17, 1\]"):
        table.fetch(torch.tensor([18, 17, 0]))


def test_disk_reads_each_distinct_row_once(tables, monkeypatch):
    import deepinfer.model.engram_table as module

    offsets = []
    real = module.os.preadv
    monkeypatch.setattr(
        module.os, "preadv", lambda f, b, offset: offsets.append(offset) or real(f, b, offset)
    )
    tables["disk"].fetch(torch.tensor([[9, 2, 9], [2, 2, 100]]))
    assert len(offsets) == 2 * 3
    assert offsets[:3] == sorted(offsets[:3])
    assert offsets[3:] == sorted(offsets[3:])


def test_a_table_that_shrinks_is_noticed(directory):
    table = open_table(Checkpoint(directory, ARCH), 1, "disk", CPU)
    for shard in Path(directory).glob("*.safetensors"):
        shard.write_bytes(b"")
    with pytest.raises(CheckpointError, match="did it change"):
        table.fetch(torch.tensor([1]))


@pytest.mark.gpu
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_rows_arrive_on_the_device_wherever_the_table_is(directory, gpu, placement):
    table = open_table(Checkpoint(directory, ARCH), 1, placement, gpu.device)
    weight = read(DummySource(ARCH, 2), "layers.1.engram.embed.weight")
    scale = read(DummySource(ARCH, 2), "layers.1.engram.embed.scale")
    rows = torch.randint(0, ROWS, (50, 6))
    for asked in (rows, rows.to(gpu.device)):
        codes, scales = table.fetch(asked)
        assert codes.device.type == scales.device.type == "cuda"
        assert torch.equal(codes.cpu(), weight[rows])
        assert torch.equal(scales.cpu(), scale[rows])
