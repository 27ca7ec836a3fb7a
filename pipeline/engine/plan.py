"""Description of a build without running it, for `lookahead engine --dry-run`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.checkpoint.fetch import describe_source, known_content_hash
from pipeline.config.folders import Folders
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import PLAN_SUFFIX, artifact_dir, artifacts_of, load_artifact
from pipeline.engine.backend import backend_of
from pipeline.engine.fingerprint import differences
from pipeline.errors import BuildError
from pipeline.files import write_atomically


def engine_plan(resolved: ResolvedConfig, folders: Folders) -> dict[str, Any]:
    """Return checkpoint, folder, sizes and state of an engine. Uses no network and writes no files."""
    folder = artifact_dir(folders, resolved.model.name, resolved.profile.name)
    lookahead, backend = resolved.lookahead, backend_of(resolved.backend)
    backend.check(resolved)
    return {
        "model": resolved.model.name,
        "profile": resolved.profile.name,
        "backend": resolved.backend,
        "device": resolved.device,
        "dtype": resolved.dtype,
        "checkpoint": describe_source(resolved.model),
        "folder": str(folder),
        "window_size": lookahead.max_window_size,
        "ngram_size": lookahead.max_ngram_size,
        "verification_set_size": lookahead.max_verification_set_size,
        "lookahead_draft_len": lookahead.max_draft_len,
        "lookahead_origin": lookahead.origin,
        **backend.plan(resolved),
        "state": _state(resolved, folders),
    }


def write_plan(plan: Mapping[str, Any], resolved: ResolvedConfig, folders: Folders) -> Path:
    """Write a plan as JSON beside the engines of its model. Returns the path."""
    path = folders.engines / resolved.model.name / f"{resolved.profile.name}{PLAN_SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(plan, indent=2) + "\n")
    return path


def _state(resolved: ResolvedConfig, folders: Folders) -> str:
    built = artifacts_of(folders, resolved.model.name)
    folder = next((each for each in built if each.name == resolved.profile.name), None)
    if folder is None:
        return "not built"
    try:
        present = load_artifact(folder, folders.cache)
    except BuildError as error:
        return f"to be built again: {error}"
    # If only a download gives the checkpoint's hash, the artifact's checkpoint is assumed to be unchanged.
    content_hash = known_content_hash(resolved.model) or present.manifest.fingerprint.checkpoint
    wanted = backend_of(resolved.backend).fingerprint(resolved, content_hash)
    if changes := list(differences(wanted.entries(), present.manifest.fingerprint.entries())):
        return f"to be built again: {'; '.join(changes)}"
    return "up to date" if present.resolved == resolved else "engine up to date, settings to be updated"
