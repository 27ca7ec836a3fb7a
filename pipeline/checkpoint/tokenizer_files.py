"""Writes tokenizer files that transformers 4.56 and later and transformers 5 can read.

NVIDIA's containers have transformers 4.57, which cannot load what transformers 5 saves: it has no class
`TokenizersBackend`, and expects `extra_special_tokens` to be an object, not a list.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.files import write_atomically

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SETTINGS = "tokenizer_config.json"
# With this file a tokenizer loads without conversion.
VOCABULARY = "tokenizer.json"
# Class name, in both releases, of a tokenizer that tokenizer.json describes completely.
_CLASS = "PreTrainedTokenizerFast"
_CLASS_OF_5 = "TokenizersBackend"
# Keys that transformers 5 saves about the call that loaded a tokenizer.
_OF_LOADING = ("backend", "is_local", "local_files_only")


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer that has a tokenizer.json, with its chat template. The class is a general one, because
    model-specific classes add special tokens, by rules that differ between the releases."""
    tokenizer.save_pretrained(folder)
    _write_settings(folder, _readable({**_settings(folder), "tokenizer_class": _CLASS}))


def copy_tokenizer(files: Iterable[Path], config: Path, folder: Path) -> None:
    """Copy a checkpoint's tokenizer files, and `make_portable`. config: the checkpoint's config.json, copied if
    tokenizer_config.json does not state the tokenizer's class."""
    for path in files:
        shutil.copyfile(path, folder / path.name)
    if "tokenizer_class" not in _settings(folder) and config.is_file():
        shutil.copyfile(config, folder / config.name)
    make_portable(folder)


def make_portable(folder: Path) -> None:
    """Rewrite a tokenizer_config.json that only transformers 5 can read."""
    settings = _settings(folder)
    if settings.get("tokenizer_class") == _CLASS_OF_5:
        settings["tokenizer_class"] = _CLASS
    elif not isinstance(settings.get("extra_special_tokens"), list):
        return
    _write_settings(folder, _readable(settings))


def _readable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under names that both releases have."""
    kept = {name: value for name, value in settings.items() if name not in _OF_LOADING}
    if isinstance(extra := kept.get("extra_special_tokens"), list):
        del kept["extra_special_tokens"]
        kept["additional_special_tokens"] = extra
    return kept


def _write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    # A new file, because the old one may be a hard link.
    write_atomically(folder / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return settings
