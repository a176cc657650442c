"""A small checkpoint on disk, whole and as a copy to be damaged."""

import shutil
from pathlib import Path

import pytest

from deepinfer.model.dummy import DummySource
from deepinfer.model.writer import write_checkpoint
from tests.model.tiny import ARCH, CONFIG


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """`DummySource(ARCH, 1)` in three shards; tests only read it."""
    directory = tmp_path_factory.mktemp("checkpoint") / "pristine"
    write_checkpoint(directory, ARCH, DummySource(ARCH, 1), CONFIG, 3)
    return directory


@pytest.fixture
def directory(pristine, tmp_path):
    """A copy of `pristine` that the test may change."""
    return Path(shutil.copytree(pristine, tmp_path / "copy"))
