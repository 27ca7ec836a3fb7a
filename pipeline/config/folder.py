"""A model config from a checkpoint folder, so that `--model path/to/checkpoint` works without writing a YAML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pipeline.config.faults import KeyPath
from pipeline.config.loading import Draft, shown
from pipeline.errors import ConfigError

# Names that config.json uses for the longest context; most families have the first.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")


def draft_from_checkpoint_folder(folder: Path) -> Draft:
    """Reads config.json and the sizes of the weight files. Lookahead values are not known and stay off."""
    config_path = folder / "config.json"
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{shown(folder)} is no checkpoint: it holds no config.json.") from error
    except ValueError as error:
        raise ConfigError(f"{shown(config_path)} is no valid JSON: {error}.") from error
    data: dict[str, Any] = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", folder.resolve().name.lower()).strip("-._") or "checkpoint",
        "description": f"Checkpoint folder {shown(folder)}",
        "checkpoint": {"source": "local", "path": str(folder.resolve())},
        "num_parameters": max(1, _num_parameters(folder)),
        "chat_template": _has_chat_template(folder),
    }
    architectures = config.get("architectures")
    if architectures:
        data["architecture"] = architectures[0]
    for key in _CONTEXT_KEYS:
        if isinstance(config.get(key), int):
            data["max_position_embeddings"] = config[key]
            break
    origins: dict[KeyPath, str] = {(): shown(config_path)}
    return Draft(data, origins)


def _num_parameters(folder: Path) -> int:
    """From the headers of the safetensors files; unreadable ones are reported when the checkpoint is opened."""
    from math import prod

    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                continue
            try:
                header = json.loads(file.read(size))
            except ValueError:
                continue
        total += sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    return total


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return False
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).get("chat_template"))
    except ValueError:
        return False
