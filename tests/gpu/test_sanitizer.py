"""compute-sanitizer over every Triton kernel: no access out of bounds. Part of the CUDA toolkit."""

import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SHARES = 8


@pytest.mark.parametrize("asked", [*(f"{i}/{SHARES}" for i in range(SHARES)), "engine", "graphs"])
def test_no_kernel_reads_or_writes_out_of_bounds(gpu, asked):
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    # Every tensor gets memory of its own, so that a neighbour cannot hide a wrong address; captured
    # steps need the memory of a pool.
    own = [] if asked == "graphs" else ["PYTORCH_NO_CUDA_MEMORY_CACHING=1"]
    watched = [tool, "--tool", "memcheck", "--error-exitcode", "9"]
    program = [sys.executable, "-m", "tests.gpu.every_kernel", asked]
    found = subprocess.run(
        ["env", *own, *watched, *program], capture_output=True, text=True, timeout=290
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    assert "ERROR SUMMARY: 0 errors" in found.stdout
    assert found.stdout.count("\nall of ") == 1
