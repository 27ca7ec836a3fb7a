"""Machine, versions and command of a measurement, stored with its results."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from typing import Any

import psutil

from pipeline import __version__
from pipeline.engine.artifact import Artifact
from pipeline.engine.fingerprint import commit, cpu_name, version_of

PACKAGES = ("torch", "transformers", "numpy", "numba", "tokenizers", "safetensors", "tritonclient", "nvidia-pytriton")


def manifest_of(artifact: Artifact | None, config: dict[str, Any]) -> dict[str, Any]:
    """Environment, versions, command and config, as JSON values. artifact: the measured engine, if it is in
    process."""
    manifest: dict[str, Any] = {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": ["lookahead", *sys.argv[1:]],
        "commit": commit(),
        "config": config,
        "env": environment(),
        "versions": {"lookahead-pipeline": __version__, "python": platform.python_version()}
        | {name: version for name in PACKAGES if (version := version_of(name)) is not None},
    }
    if artifact is not None:
        manifest["fingerprint"] = artifact.manifest.fingerprint_digest
        manifest["resolved"] = artifact.resolved.model_dump(mode="json")
    return manifest


def environment() -> dict[str, Any]:
    """The machine, as JSON values."""
    import torch

    found: dict[str, Any] = {
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "num_cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
        found["cuda"] = torch.version.cuda
    return found
