"""Makes a model config from a GGUF file or a Hugging Face repository, for --model without a YAML."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from pipeline.config.faults import KeyPath
from pipeline.config.folder import LOOKAHEAD, config_values, json_object, model_name
from pipeline.config.loading import Draft, shown
from pipeline.errors import ConfigError

# Excludes paths such as ./name and ../name.
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# Class of each supported GGUF architecture. A "llama" file may contain a Mistral model, whose computation is the same
# without a sliding window.
_GGUF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_INDEX = "model.safetensors.index.json"


def is_repository(name: str) -> bool:
    return _REPOSITORY.fullmatch(name) is not None


def draft_from_gguf(path: Path) -> Draft:
    """Read the settings and the tensor list of a GGUF file. Raises ConfigError if the file is invalid or its
    architecture is not supported."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise ConfigError(f"{shown(path)} is not a GGUF file, is incomplete or is damaged. Fetch it again.") from error

    def setting(key: str) -> Any:
        field = reader.get_field(key)
        return None if field is None else field.contents()

    architecture = setting("general.architecture")
    if architecture not in _GGUF_CLASSES:
        raise ConfigError(
            f"{shown(path)} has architecture {architecture!r}. Supported in GGUF files: {', '.join(_GGUF_CLASSES)}. "
            "Use the checkpoint's safetensors instead."
        )
    data: dict[str, Any] = {
        "name": model_name(path.stem),
        "description": f"GGUF file {shown(path)}",
        "checkpoint": {"source": "gguf", "path": str(path.resolve())},
        "architecture": _GGUF_CLASSES[architecture],
        "num_parameters": max(1, sum(int(tensor.n_elements) for tensor in reader.tensors)),
        "chat_template": bool(setting("tokenizer.chat_template")),
        "lookahead": {"default": LOOKAHEAD},
    }
    if setting(f"{architecture}.attention.sliding_window"):
        data["architecture"] = "MistralForCausalLM"
    if isinstance(context := setting(f"{architecture}.context_length"), int) and context > 0:
        data["max_position_embeddings"] = context
    origins: dict[KeyPath, str] = {(): shown(path)}
    return Draft(data, origins)


def draft_from_hub(repo_id: str) -> Draft:
    """Fetch config.json and the small files that give the number of parameters. Raises ConfigError if the hub does not
    return them."""
    config_path = _fetched(repo_id, "config.json")
    if config_path is None:
        raise ConfigError(f"{repo_id} is not a checkpoint: it has no config.json. Correct the id.")
    data: dict[str, Any] = {
        "name": model_name(repo_id.rpartition("/")[2]),
        "description": f"{repo_id} on the Hugging Face hub",
        "checkpoint": {"source": "hub", "repo_id": repo_id},
        "num_parameters": _num_parameters(repo_id),
        "chat_template": _has_chat_template(repo_id),
        "lookahead": {"default": LOOKAHEAD},
        **config_values(json_object(config_path, ConfigError)),
    }
    origins: dict[KeyPath, str] = {(): f"config.json of {repo_id}"}
    return Draft(data, origins)


def _fetched(repo_id: str, name: str) -> Path | None:
    """Path of a repository's file, from the hub or its cache; None if the repository does not have the file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo_id, name))
    except LocalEntryNotFoundError as error:
        if name != "config.json":
            return None
        raise ConfigError(
            f"{repo_id} is not in the local cache, and the hub cannot be reached or HF_HUB_OFFLINE is set. Fetch it "
            "on a machine with network, or name a model, a YAML, a checkpoint folder or a GGUF file."
        ) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"{repo_id} cannot be fetched: {first.rstrip('.')}. Correct the id, or set HF_TOKEN to a token "
            "that may read it."
        ) from error


def _num_parameters(repo_id: str) -> int:
    """Number of parameters from the index of shards, else from the hub's count; 1 if both are unknown."""
    from huggingface_hub import get_safetensors_metadata

    if (index := _fetched(repo_id, _INDEX)) is not None:
        match json_object(index, ConfigError):
            case {"metadata": {"total_size": int() | float() as total}} if math.isfinite(total):
                return max(1, int(total) // 2)  # published weights have 16 bits
    try:
        return max(1, sum(get_safetensors_metadata(repo_id).parameter_count.values()))
    except Exception:  # of the HTTP library, for example; the download reports what is wrong
        return 1


def _has_chat_template(repo_id: str) -> bool:
    if _fetched(repo_id, "chat_template.jinja") is not None:
        return True
    path = _fetched(repo_id, "tokenizer_config.json")
    return path is not None and bool(json_object(path, ConfigError).get("chat_template"))
