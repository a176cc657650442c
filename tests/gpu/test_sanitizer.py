"""compute-sanitizer over every Triton kernel: no access out of bounds. Part of the CUDA toolkit."""

import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SHARES = 8


@pytest.mark.parametrize("share", range(SHARES))
def test_no_kernel_reads_or_writes_out_of_bounds(gpu, share):
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    # Every tensor gets memory of its own, so that a neighbour cannot hide a wrong address.
    found = subprocess.run(
        ["env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", tool, "--tool", "memcheck",
         "--error-exitcode", "9", sys.executable, "-m", "tests.gpu.every_kernel",
         f"{share}/{SHARES}"],
        capture_output=True, text=True, timeout=290,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    assert "ERROR SUMMARY: 0 errors" in found.stdout
    assert found.stdout.count("\nall of ") == 1
