"""Builds of the tiny random model on a CPU."""

from __future__ import annotations

from pipeline.config.folders import folders
from pipeline.config.hardware import Hardware
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig

CPU = Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)


def tiny(*overrides: str, profile: str = "latency") -> ResolvedConfig:
    return resolve_config("tiny-random-llama", profile, overrides, where=folders({}), hardware=CPU)
