"""Builds of the tiny random model on a CPU."""

from __future__ import annotations

from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from tests.unit.config.shipped import CPU, SHIPPED


def tiny(*overrides: str, profile: str = "latency") -> ResolvedConfig:
    return resolve_config("tiny-random-llama", profile, overrides, where=SHIPPED, hardware=CPU)
