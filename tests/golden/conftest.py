"""Fixtures of the golden suite, and the order that lets the coverage test come last."""

import pytest

from tests.golden.runs import Runs


@pytest.fixture(scope="session")
def runs(golden_dir):
    """Golden configurations and what has been run of them, shared by the whole session."""
    return Runs(golden_dir)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name == "test_coverage.py")
