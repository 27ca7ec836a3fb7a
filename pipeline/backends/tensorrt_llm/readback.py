"""Compares written files with the requested settings, because TensorRT-LLM silently drops keys and changes values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.backends.tensorrt_llm.release_data import RELEASE_LINE
from pipeline.errors import BuildError

# RoPE base of families without one in config.json, such as Falcon and RecurrentGemma.
_DEFAULT_ROTARY_BASE = 10000.0


def checkpoint_differences(folder: Path, expected: Mapping[str, Any]) -> list[str]:
    """Differences of a converted checkpoint from `expected` (keys of its config.json), and its missing rank files."""
    config = {"rotary_base": _DEFAULT_ROTARY_BASE, **_read(folder / "config.json")}
    found = list(_differences(expected, config, ""))
    mapping = expected.get("mapping", {})
    files = int(mapping.get("tp_size", 1)) * int(mapping.get("pp_size", 1))  # context-parallel ranks share them
    return found + _missing(folder, [f"rank{rank}.safetensors" for rank in range(files)])


def engine_differences(folder: Path, expected: Mapping[str, Any], world_size: int) -> list[str]:
    """Differences of a built engine from `expected` (keys of its config.json), and its missing rank files."""
    config = _read(folder / "config.json")
    version = str(config.get("version", "unknown"))
    found = [] if version.startswith(f"{RELEASE_LINE}.") else [f"version {version} instead of {RELEASE_LINE}"]
    found += _differences(expected, config, "")
    return found + _missing(folder, [f"rank{rank}.engine" for rank in range(world_size)])


def require_equal(differences: list[str], folder: Path, stage: str) -> None:
    """Raise BuildError if there are differences, with all of them."""
    if differences:
        raise BuildError(
            f"The {stage} in {folder} differs from the plan: {'; '.join(differences)}. TensorRT-LLM changed or "
            "dropped settings; do not serve it. Check the container's version with `lookahead doctor`."
        )


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in expected.items():
        other = found.get(name)
        if isinstance(value, Mapping):
            yield from _differences(value, other if isinstance(other, Mapping) else {}, f"{prefix}{name}.")
        elif not _equal(value, other):
            shown = other if name in found else "absent"
            yield f"{prefix}{name} {shown} instead of {value}"


def _equal(expected: object, found: object) -> bool:
    """Compare two JSON values. Ignores the case of enum names, and the difference between integers and floats."""
    if isinstance(expected, str) and isinstance(found, str):
        return expected.lower() == found.lower()
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    return expected == found


def _missing(folder: Path, names: list[str]) -> list[str]:
    return [f"no {name}" for name in names if not (folder / name).is_file()]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BuildError(f"{path} was not written or cannot be read: {error}. See the stage's log.") from error
    if not isinstance(value, dict):
        raise BuildError(f"{path} should contain a JSON object. See the stage's log.")
    return value
