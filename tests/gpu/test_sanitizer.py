"""compute-sanitizer over every Triton kernel. A part of the CUDA toolkit.

No access out of bounds, no value that nobody wrote, no race between the warps of a program.
"""

import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SHARES = 8
CASES = [
    *(("memcheck", f"{share}/{SHARES}") for share in range(SHARES)),
    ("memcheck", "engine"),
    ("memcheck", "graphs"),
    ("initcheck", "0/1", "decode 9"),
    ("racecheck", "0/1", "decode 9"),
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_sanitizer_finds_nothing(gpu, case):
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    kind, *asked = case
    # Every tensor gets memory of its own, so that a neighbour cannot hide a wrong address; captured
    # steps need the memory of a pool.
    own = [] if "graphs" in asked else ["PYTORCH_NO_CUDA_MEMORY_CACHING=1"]
    # C++ has mangled names: kernels of torch are not looked at.
    others = ["--kernel-name-exclude", "regex=^_Z"]
    watched = [tool, "--tool", kind, "--error-exitcode", "9", *others]
    program = [sys.executable, "-m", "tests.gpu.every_kernel", *asked]
    found = subprocess.run(
        ["env", *own, *watched, *program], capture_output=True, text=True, timeout=290
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    assert "SUMMARY: 0 " in found.stdout
    assert found.stdout.count("\nall of ") == 1
