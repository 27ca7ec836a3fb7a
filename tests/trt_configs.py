"""Configs for the TensorRT-LLM backend, for tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext, build_context_of
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig

# All facts about the release, those besides that only tests need.
RELEASE_FACTS: dict[str, Any] = json.loads(Path(release_data.__file__).with_suffix(".json").read_text())
SPECULATIONS = ("lookahead", "trie", "none", "both")


@cache
def trt_config(model: str = "llama2-13b", profile: str = "latency", *overrides: str) -> ResolvedConfig:
    """A shipped model under a shipped profile on this backend, without its rules. Overrides of the profile's backend
    part may leave `tensorrt_llm.` out: ".speculation=trie"."""
    full = [f"tensorrt_llm{text}" if text.startswith(".") else text for text in overrides]
    return resolve_config(model, profile, ("backend=tensorrt_llm", *full), backend_rules=False)


def trt_context(*overrides: str, model: str = "llama2-13b", profile: str = "latency") -> BuildContext:
    return build_context_of(trt_config(model, profile, *overrides))
