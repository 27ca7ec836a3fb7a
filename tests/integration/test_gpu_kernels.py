"""The kernels compile for GPUs, which the interpreter cannot tell."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from tests.integration import compile_gpu_kernels

# Shared memory of a block there.
SHARED_BYTES = 99 << 10


@pytest.mark.slow
def test_kernels_compile_and_fit_into_shared_memory() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, compile_gpu_kernels.__file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 16
    for *_, shared, size in lines:
        assert int(shared) <= SHARED_BYTES
        assert int(size) > 0
