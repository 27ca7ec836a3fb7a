"""Makes a model config from a checkpoint folder, for `--model path/to/checkpoint` without a YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.faults import KeyPath
from pipeline.config.loading import Draft, shown
from pipeline.errors import ConfigError, UserError

# W, N, G of a model that was not tuned: 7 draft tokens, which every shipped profile allows. arXiv 2402.02057 uses 119
# for a 7B model on an A100.
LOOKAHEAD: dict[str, Any] = {
    "max_window_size": 2,
    "max_ngram_size": 3,
    "max_verification_set_size": 2,
    "origin": "default of models that were not tuned; `lookahead tune` measures better values",
}
# Keys of config.json for the longest context; most families have the first.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")


def draft_from_checkpoint_folder(folder: Path) -> Draft:
    """Read config.json and the sizes of the weight files. W, N and G get the default. Raises ConfigError if the folder
    is not a checkpoint."""
    config_path = folder / "config.json"
    if (folder / "adapter_config.json").is_file() and not config_path.exists():
        raise ConfigError(
            f"{shown(folder)} is an adapter (LoRA), not a whole model. Merge it into its base model "
            "(`merge_and_unload` of peft), save the result, and use that folder."
        )
    if not config_path.exists():
        found = sorted(folder.glob("*.gguf"))
        remedy = f" Name its GGUF file instead: {shown(found[0])}." if found else ""
        raise ConfigError(f"{shown(folder)} is not a checkpoint: it has no config.json.{remedy}")
    config = json_object(config_path, ConfigError)
    data: dict[str, Any] = {
        "name": model_name(folder.resolve().name),
        "description": f"Checkpoint folder {shown(folder)}",
        "checkpoint": {"source": "local", "path": str(folder.resolve())},
        "num_parameters": max(1, _num_parameters(folder)),
        "chat_template": _has_chat_template(folder),
        "lookahead": {"default": LOOKAHEAD},
        **config_values(config),
    }
    origins: dict[KeyPath, str] = {(): shown(config_path)}
    return Draft(data, origins)


def model_name(written: str) -> str:
    """Convert to a valid name of a model config."""
    return re.sub(r"[^a-z0-9._-]+", "-", written.lower()).strip("-._") or "checkpoint"


def config_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a model config from a config.json."""
    values: dict[str, Any] = {}
    if architecture := named_architecture(config):
        values["architecture"] = architecture
    for key in _CONTEXT_KEYS:
        if isinstance(config.get(key), int):
            values["max_position_embeddings"] = config[key]
            break
    return values


def json_object(path: Path, error: type[UserError]) -> dict[str, Any]:
    """Content of a JSON file of a checkpoint. Raises `error` if it is not a JSON object."""
    if path.exists() and not path.is_file():  # opening a FIFO would block
        raise error(f"{shown(path)} is not a regular file. Replace it.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise error(f"{shown(path)} cannot be read: {cause.strerror}.") from cause
    except (ValueError, RecursionError) as cause:
        raise error(f"{shown(path)} is not valid JSON: {cause}.") from cause
    if not isinstance(value, dict):
        raise error(f"{shown(path)} should contain a JSON object.")
    return value


def named_architecture(config: Mapping[str, Any]) -> str | None:
    """First class in `architectures` of config.json; None if there is none."""
    match config.get("architectures"):
        case [str(name), *_]:
            return name
    return None


def _num_parameters(folder: Path) -> int:
    """Sum over the headers of the safetensors files. Unreadable files are reported when the checkpoint is opened."""
    from math import prod

    total = 0
    for path in folder.glob("*.safetensors"):
        if not path.is_file():  # opening a FIFO would block
            continue
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if size > path.stat().st_size:
                    continue
                header = json.loads(file.read(size))
            total += sum(int(prod(entry["shape"])) for name, entry in header.items() if name != "__metadata__")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    return total


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    path = folder / "tokenizer_config.json"
    try:
        return path.is_file() and bool(json_object(path, ConfigError).get("chat_template"))
    except ConfigError:
        return False  # reported when the tokenizer is read
