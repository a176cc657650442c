"""Fixtures of all tests: golden data, the accelerator, seeds and restored global state.

Knows nothing of single rooms; helpers of one room stay beside its tests.
"""

import os
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parents[1]
# Small tensors on many threads cost more in waking threads than in arithmetic.
torch.set_num_threads(1)

# Slow first examples are no defect: torch starts its threads in the first one.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=500, derandomize=True)
settings.register_profile("soak", settings.get_profile("dev"), max_examples=20_000)
settings.load_profile("dev")


@dataclass(frozen=True)
class Gpu:
    """The accelerator of a test: torch device and architecture name, such as "sm90"."""

    device: torch.device
    arch: str


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Directory with `config-a`, `config-b`, `config-d`: checkpoints and traces.

    DEEPINFER_GOLDEN, else `shared/golden` beside the repository. Absent: a failure under CI, a
    visible skip elsewhere. A test that uses it carries the marker `golden`.
    """
    named = os.environ.get("DEEPINFER_GOLDEN")
    place = Path(named) if named else REPOSITORY.parent / "shared" / "golden"
    if (place / "config-a" / "manifest.json").is_file():
        return place
    reason = f"no golden data at {place}; set DEEPINFER_GOLDEN"
    if named or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def unit_dir() -> Path:
    """Unit data of single functions; tracked in the repository, always there."""
    return REPOSITORY / "tests" / "golden_data" / "unit"


@pytest.fixture(scope="session")
def engram_map_dir() -> Path:
    """`config-a|b|d.safetensors`: token map, primes, offsets, multipliers of the golden configs."""
    return REPOSITORY / "tests" / "golden_data" / "engram_map"


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The CUDA device; the test is skipped without one. Such a test carries the marker `gpu`."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    major, minor = torch.cuda.get_device_capability()
    return Gpu(torch.device("cuda", torch.cuda.current_device()), f"sm{major}{minor}")


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Seed random, NumPy and torch from the test id: the same numbers in any order of tests."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - tests of others may use the legacy generator
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def restored_torch_state() -> Iterator[None]:
    """Put back torch's default dtype, thread count and deterministic mode after each test."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_default_dtype(dtype)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # loads a compiler
        torch.use_deterministic_algorithms(deterministic)
