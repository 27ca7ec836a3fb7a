"""Opens and checks a checkpoint folder: config.json, safetensors (one file, or shards with an index), tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipeline.checkpoint.architectures import check_rope
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.hashing import cached_sha256
from pipeline.config.bare_checkpoint import INDEX, json_object, named_architecture
from pipeline.errors import CheckpointError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
# The checkpoint's own code, and vocabularies for it.
CODE_FILES = ("*.py", "*.tiktoken")
_GIT_LFS = b"version https://git-lfs.github.com/spec/"  # begins a file that git-lfs has not fetched


def open_folder(
    folder: Path, architecture: str, cache_dir: Path, content_hash: str | None = None, *, with_code: bool = False
) -> Checkpoint:
    """Check a folder and return its description. architecture: the expected one, which some backend supports.
    content_hash: None to hash all files. with_code: also list Python code. Raises CheckpointError."""
    if not folder.is_dir():
        raise CheckpointError(f"There is no checkpoint folder {folder}. Correct the path in the model config.")
    check_config_file(folder, architecture)
    _check_generation_config(folder / "generation_config.json")
    weights = _weight_files(folder)
    for path in weights:
        check_safetensors(path)
    tokenizer = tokenizer_files(folder)
    if not any(path.name in _VOCABULARIES for path in tokenizer):
        raise CheckpointError(f"{folder} has no tokenizer; expected one of {', '.join(_VOCABULARIES)}.")
    code = tuple(sorted(path for kind in CODE_FILES for path in folder.glob(kind))) if with_code else None
    if content_hash is None:
        others = [path for name in ("config.json", "generation_config.json") if (path := folder / name).is_file()]
        content_hash = _hash_files((*others, *tokenizer, *weights, *(code or ())), cache_dir)
    return Checkpoint(folder, None, architecture, content_hash, weights, code)


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """The tokenizer's files that the folder has."""
    return tuple(folder / name for name in _TOKENIZER_FILES if (folder / name).is_file())


def check_config_file(folder: Path, architecture: str) -> None:
    """Raise CheckpointError for a config.json of another architecture, with its own names of weight files, or with
    rotary embeddings that no backend supports."""
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder} is not a checkpoint: it has no config.json.")
    config = json_object(folder / "config.json", CheckpointError)
    found = named_architecture(config)
    if found is None:
        raise CheckpointError(
            f'{folder / "config.json"} names no class. Add "architectures": ["{architecture}"] to it if that is right.'
        )
    if found != architecture:
        raise CheckpointError(
            f"{folder} has architecture {found!r}; the model config has {architecture!r}. Correct the config."
        )
    if (weights := config.get("transformers_weights")) is not None:
        # transformers would load this file instead of those that are checked and hashed.
        raise CheckpointError(
            f"{folder} names other weights (transformers_weights {weights!r} in config.json), which is not supported. "
            f"Rename that file to model.safetensors, or its index to {INDEX}, and remove the setting."
        )
    check_rope(config, str(folder))


def check_safetensors(path: Path) -> None:
    """Raise CheckpointError for a safetensors file that is incomplete or has an invalid header."""
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as file:
        if file.read(len(_GIT_LFS)) == _GIT_LFS:
            raise CheckpointError(f"{path} is a git-lfs pointer, not the file. Run `git lfs pull` there.")
    try:
        with safe_open(path, framework="np"):  # checks the header and the size of the file
            pass
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a complete safetensors file: {error}. Fetch it again.") from error


def _check_generation_config(path: Path) -> None:
    """Raise CheckpointError for a damaged generation config. transformers would ignore it, with its end tokens."""
    if not path.is_file():
        return
    ends = json_object(path, CheckpointError).get("eos_token_id")
    if ends is not None and not all(type(end) is int for end in (ends if isinstance(ends, list) else [ends])):
        raise CheckpointError(f"{path}: eos_token_id: found {ends!r}; should be a token id or a list of token ids.")


def _weight_files(folder: Path) -> tuple[Path, ...]:
    for path in folder.glob("*.safetensors"):
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a regular file. Replace it.")
    if (folder / "model.safetensors").is_file():
        return (folder / "model.safetensors",)  # transformers reads it even if there are shards
    index_path = folder / INDEX
    if index_path.is_file():
        index = json_object(index_path, CheckpointError)
        tensors = index.get("weight_map")
        if not isinstance(tensors, dict) or not tensors:
            raise CheckpointError(f"{index_path} has no weight_map. Fetch it again.")
        if wrong := [name for name in tensors.values() if not _is_shard(name)]:
            raise CheckpointError(
                f"{index_path}: found {wrong[0]!r}; should be the name of a safetensors file beside it. Fetch it again."
            )
        shards = tuple(folder / name for name in sorted(set(tensors.values())))
        missing = [path.name for path in shards if not path.is_file()]
        if missing:
            raise CheckpointError(f"{folder} lacks {', '.join(missing)}, which {INDEX} names. Fetch the missing files.")
        return shards
    if any(folder.glob("*.gguf")):
        raise CheckpointError(
            f"{folder} has a GGUF file and no safetensors. Name that file (source: gguf in the model config)."
        )
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise CheckpointError(
            f"{folder} has pickled PyTorch weights, which are not supported. Convert them to safetensors: load the "
            "folder with transformers and call `save_pretrained`."
        )
    others = ", ".join(sorted(path.name for path in folder.glob("*.safetensors")))
    found = f"; it has {others}" if others else ""
    raise CheckpointError(f"{folder} has no weights: neither model.safetensors nor {INDEX}{found}. Fetch it again.")


def _is_shard(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def _hash_files(paths: tuple[Path, ...], cache_dir: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}\0{cached_sha256(path, cache_dir)}\n".encode())
    return digest.hexdigest()
