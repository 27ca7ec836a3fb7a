"""Size of the vocabulary, as an engine states it."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.errors import RepositoryError


def vocab_size(engine_dir: Path) -> int:
    """Size of the vocabulary that an engine's config.json states. Raises RepositoryError if it states none."""
    path = engine_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{path} cannot be read: {error}. Build the engine again with --force.") from error
    for section in (config, config.get("text_config", {}), config.get("pretrained_config", {})):
        if "vocab_size" in section:
            return int(section["vocab_size"])
    raise RepositoryError(f"{path} states no vocab_size. Build the engine again with --force.")
