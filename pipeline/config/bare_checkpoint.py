"""Creates a model config from a checkpoint, for --model without a YAML: a folder, a GGUF file, or a Hugging Face
repository."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.gguf_file import GgufFile
from pipeline.config.loading import RawSettings, shown
from pipeline.errors import ConfigError, UserError

# Excludes paths such as ./name and ../name.
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# GGUF names of architectures, and their classes. A "llama" file may contain a Mistral model, whose computation is the
# same without a sliding window.
GGUF_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "MistralForCausalLM"),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
}
# Index of the shards of a checkpoint.
INDEX = "model.safetensors.index.json"
# Files of a repository that give the settings of a model without its weights.
_SMALL_FILES = ["config.json", INDEX, "chat_template.jinja", "tokenizer_config.json"]
# W, N, G of a model that was not tuned: 7 draft tokens, which every shipped profile allows. arXiv 2402.02057 uses 119
# for a 7B model on an A100.
_LOOKAHEAD = {
    "max_window_size": 2,
    "max_ngram_size": 3,
    "max_verification_set_size": 2,
    "origin": "default of models that were not tuned; `lookahead tune` measures better values",
}
# Keys of config.json for the longest context; most families have the first.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")


def is_repository(name: str) -> bool:
    """Whether a name has the form owner/name of the Hugging Face hub."""
    return _REPOSITORY.fullmatch(name) is not None


def settings_from_folder(folder: Path) -> RawSettings:
    """Read config.json and the sizes of the weight files. Raises ConfigError if the folder is not a checkpoint."""
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
    # A link names the model, such as one to a snapshot of the hub's cache, whose folder is named by a commit.
    named = folder.resolve() if folder.name in ("", "..") else folder
    return _raw_settings(
        named.name,
        f"Checkpoint folder {shown(folder)}",
        shown(config_path),
        checkpoint={"source": "local", "path": str(folder.resolve())},
        num_parameters=_num_parameters_of_folder(folder),
        chat_template=_has_chat_template(folder),
        **_values_of_config(config_path),
    )


def settings_from_gguf(path: Path) -> RawSettings:
    """Read the settings and the tensor list of a GGUF file. Raises ConfigError if the file is invalid or its
    architecture is not supported."""
    file = GgufFile(path, ConfigError)
    architecture = file.architecture
    if architecture not in GGUF_ARCHITECTURES:
        raise ConfigError(
            f"{shown(path)} has architecture {architecture!r}. Supported in GGUF files: "
            f"{', '.join(GGUF_ARCHITECTURES)}. Use the checkpoint's safetensors instead."
        )
    has_window = bool(file.setting("attention.sliding_window"))
    context = file.setting("context_length")
    return _raw_settings(
        path.stem,
        f"GGUF file {shown(path)}",
        shown(path),
        checkpoint={"source": "gguf", "path": str(path.resolve())},
        architecture="MistralForCausalLM" if has_window else GGUF_ARCHITECTURES[architecture][0],
        num_parameters=file.num_entries,
        chat_template=bool(file.value("tokenizer.chat_template")),
        **({"max_position_embeddings": context} if isinstance(context, int) and context > 0 else {}),
    )


def settings_from_hub(repo_id: str) -> RawSettings:
    """Fetch config.json and the small files that give the number of parameters. Raises ConfigError if the hub does not
    return them."""
    folder = _fetched(repo_id)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{repo_id} is not a checkpoint: it has no config.json. Correct the id.")
    return _raw_settings(
        repo_id.rpartition("/")[2],
        f"{repo_id} on the Hugging Face hub",
        f"config.json of {repo_id}",
        checkpoint={"source": "hub", "repo_id": repo_id},
        num_parameters=_num_parameters_of_repository(repo_id, folder / INDEX),
        chat_template=_has_chat_template(folder),
        **_values_of_config(folder / "config.json"),
    )


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


def num_entries(path: Path) -> int:
    """Number of entries of all tensors of a safetensors file, from its header."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  # no mapping


def named_architecture(config: Mapping[str, Any]) -> str | None:
    """First class in `architectures` of config.json; None if there is none."""
    match config.get("architectures"):
        case [str(name), *_]:
            return name
    return None


def transport_errors() -> tuple[type[Exception], ...]:
    """Errors of requests to the hub, including those of its HTTP library, which depends on the version of
    huggingface_hub."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError"))


def _raw_settings(name: str, description: str, origin: str, *, num_parameters: int, **settings: Any) -> RawSettings:
    """The settings of a model with the default W, N and G. name: converted to a valid one. origin: for messages."""
    data = {
        "name": re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "checkpoint",
        "description": description,
        "num_parameters": max(1, num_parameters),
        "lookahead": {"default": dict(_LOOKAHEAD)},
        **settings,
    }
    return RawSettings(data, {(): origin})


def _values_of_config(path: Path) -> dict[str, Any]:
    """Settings of a model from its config.json. Missing ones are faults of the model config."""
    config = json_object(path, ConfigError)
    context = next((config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)), None)
    values = {"architecture": named_architecture(config), "max_position_embeddings": context}
    return {key: value for key, value in values.items() if value is not None}


def _has_chat_template(folder: Path) -> bool:
    path = folder / "tokenizer_config.json"
    try:
        return (folder / "chat_template.jinja").is_file() or bool(json_object(path, ConfigError).get("chat_template"))
    except ConfigError:
        return False  # a missing or invalid file is reported when the tokenizer is read


def _num_parameters_of_folder(folder: Path) -> int:
    """Sum over the safetensors files. Unreadable files are reported when the checkpoint is opened."""
    from safetensors import SafetensorError

    total = 0
    for path in folder.glob("*.safetensors"):
        if path.is_file():  # opening a FIFO would block
            with suppress(OSError, SafetensorError):
                total += num_entries(path)
    return total


def _num_parameters_of_repository(repo_id: str, index: Path) -> int:
    """Number of parameters from the index of shards, else from the headers of the files; 0 if both are unknown. The
    download reports what is wrong."""
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    if index.is_file():
        match json_object(index, ConfigError):
            case {"metadata": {"total_size": int() | float() as total}} if math.isfinite(total):
                return int(total) // 2  # published weights have 16 bits
    failures: tuple[type[Exception], ...] = (NotASafetensorsRepoError, SafetensorsParsingError, ValueError)
    failures += transport_errors()
    try:
        return sum(get_safetensors_metadata(repo_id).parameter_count.values())
    except failures:
        return 0


def _fetched(repo_id: str) -> Path:
    """Folder of the hub's cache with the small files of a repository. Raises ConfigError if it can be neither fetched
    nor found in the cache."""
    # Without network, `snapshot_download` gives up at once, and `hf_hub_download` after 24 s of retries.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    failures: tuple[type[Exception], ...] = (HFValidationError, *transport_errors())
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_SMALL_FILES))
    except failures as error:
        cause: BaseException = error
        if isinstance(error, LocalEntryNotFoundError):
            if not isinstance(error.__cause__, HfHubHTTPError):
                raise ConfigError(
                    f"{repo_id} is not in the local cache, and the hub cannot be reached or HF_HUB_OFFLINE is set. "
                    "Fetch it on a machine with network, or name a model, a YAML, a checkpoint folder or a GGUF file."
                ) from error
            cause = error.__cause__
        first = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        raise ConfigError(
            f"{repo_id} cannot be fetched: {first.rstrip('.')}. Correct the id, or set HF_TOKEN to a token "
            "that may read it."
        ) from error
