"""Size of an engine's vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.errors import RepositoryError


def vocab_size(engine_dir: Path) -> int:
    """Size of the vocabulary from an engine's config.json. Raises RepositoryError if the file does not state it."""
    path = engine_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{path} cannot be read: {error}. Build the engine again with --force.") from error
    for section in (config, config.get("text_config", {}), config.get("pretrained_config", {})):
        if "vocab_size" in section:
            return int(section["vocab_size"])
    raise RepositoryError(f"{path} states no vocab_size. Build the engine again with --force.")
