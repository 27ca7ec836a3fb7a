"""Shipped configs on machines with and without a GPU, and the faults of overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.config.folders import folders
from pipeline.config.hardware import Hardware
from pipeline.config.loading import names_in
from pipeline.config.resolution import resolve_config
from pipeline.errors import ConfigError

SHIPPED = folders({})
MODELS = names_in(SHIPPED.models)
PROFILES = names_in(SHIPPED.profiles)
CPU = Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)
H100 = Hardware(gpu="H100", compute_capability=90, has_tensorrt_llm=True)


def faults_of(*overrides: str, model: str = "smollm2-135m", profile: str = "latency") -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(model, profile, overrides, where=SHIPPED, hardware=CPU)
    return str(caught.value)


def write(path: Path, data: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path
