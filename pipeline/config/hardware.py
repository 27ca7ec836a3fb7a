"""The hardware of this machine. Imports torch only if there is a GPU driver."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """What engines on this machine can use. gpu: name of the first CUDA device that torch can use; None without one.
    compute_capability: e.g. 90; 0 without a GPU."""

    gpu: str | None
    compute_capability: int
    has_tensorrt_llm: bool


def detect_hardware() -> Hardware:
    """The hardware of this machine. Takes seconds where there is a CUDA driver."""
    has_tensorrt_llm = importlib.util.find_spec("tensorrt_llm") is not None
    if has_cuda_driver():
        import torch  # takes seconds, so only with a driver

        if torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability(0)
            return Hardware(torch.cuda.get_device_name(0), 10 * major + minor, has_tensorrt_llm)
    return Hardware(None, 0, has_tensorrt_llm)


def has_cuda_driver() -> bool:
    """Whether this machine has NVIDIA's driver. Takes no time. A driver does not imply a GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
