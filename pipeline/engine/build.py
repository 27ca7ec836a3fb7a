"""ResolvedConfig -> EngineArtifact: builds an engine, or reuses the files of an earlier build."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.disk import link_or_copy
from pipeline.checkpoint.fetch import describe_source, fetch, known_content_hash
from pipeline.config.folders import Folders, expanded
from pipeline.config.schema import CheckpointSource, GgufCheckpoint, LocalCheckpoint, ResolvedConfig
from pipeline.engine.artifact import (
    STAGES,
    Artifact,
    artifact_dir,
    artifacts_of,
    build_lock,
    load_artifact,
    refresh_resolved,
    share_engine,
    share_measurements,
    write_artifact,
)
from pipeline.engine.backend import Backend, Note, backend_of
from pipeline.engine.fingerprint import Fingerprint
from pipeline.errors import BuildError, CheckpointError

Outcome = Literal["built", "shared", "updated", "reused"]
OUTCOMES: dict[Outcome, str] = {
    "built": "built",
    "shared": "built with the weights of another profile",
    "updated": "up to date; the settings that it does not depend on have changed",
    "reused": "up to date",
}


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The artifact, and how it was obtained."""

    artifact: Artifact
    outcome: Outcome

    @property
    def text(self) -> str:
        return OUTCOMES[self.outcome]


def build_engine(
    resolved: ResolvedConfig, folders: Folders, *, force: bool = False, note: Note = lambda text: None
) -> BuildResult:
    """Return the artifact of a resolved config, built if necessary. force: build in any case. note: called with each
    step. Raises CheckpointError and BuildError."""
    backend = backend_of(resolved.backend)
    backend.check(resolved)
    folder = artifact_dir(folders, resolved.model.name, resolved.profile.name)
    if folders.shared_engines is not None:
        note(f"{folders.shared_engines} cannot be written; its engines are used through links in {folders.engines}")
    with build_lock(folders, resolved.model.name, note):
        if force or not artifacts_of(folders, resolved.model.name):
            # A build is certain, so check the GPU and the memory before a long download.
            backend.require_resources(resolved, folder)
        if force:
            fetched = _fetch(resolved, backend, folders, note)
            shutil.rmtree(folder.parent / STAGES, ignore_errors=True)  # finished stages of an earlier build
            return _build(resolved, backend, folder, fetched, folders, note)
        present = _usable(folder, folders, note)
        content_hash, checkpoint = _identify(resolved, backend, folders, note)
        fingerprint = backend.fingerprint(resolved, content_hash)
        if present is not None and present.manifest.fingerprint == fingerprint:
            if present.resolved == resolved:
                return BuildResult(present, "reused")
            return BuildResult(refresh_resolved(present, resolved, folders.cache), "updated")
        sibling = _sibling_with_weights(resolved.model.name, fingerprint, backend, folders)
        if sibling is not None:
            note(f"weights: shared with profile {sibling.manifest.profile}")
            is_foreign = folders.engines not in sibling.folder.parents
            share = partial(share_engine, sibling, os.symlink if is_foreign else link_or_copy)
            share_measurements(sibling.folder.parent, folder.parent)
            return BuildResult(write_artifact(folder, resolved, fingerprint, share, folders.cache), "shared")
        return _build(resolved, backend, folder, checkpoint or _fetch(resolved, backend, folders, note), folders, note)


def _identify(
    resolved: ResolvedConfig, backend: Backend, folders: Folders, note: Note
) -> tuple[str, Checkpoint | None]:
    """Content hash of the checkpoint, and the checkpoint itself if only a download gives the hash."""
    content_hash = known_content_hash(resolved.model)
    if content_hash is not None:
        return content_hash, None
    try:
        checkpoint = _fetch(resolved, backend, folders, note)
    except CheckpointError as error:
        source = resolved.model.checkpoint
        others = (
            other for other in _loadable(resolved.model.name, folders) if other.resolved.model.checkpoint == source
        )
        if not _may_be_away(source) or (built := next(others, None)) is None:
            raise
        # A built engine must be usable without network, without the hub's cache and without the checkpoint's files.
        note(f"the engine is not compared with its checkpoint: {error}")
        return built.manifest.fingerprint.checkpoint, None
    return checkpoint.content_hash, checkpoint


def _may_be_away(source: CheckpointSource) -> bool:
    """Whether a checkpoint that cannot be read may be intact elsewhere: on the hub, or no longer at its path."""
    if isinstance(source, LocalCheckpoint | GgufCheckpoint):
        return not expanded(source.path).exists()
    return source.source == "hub"


def _fetch(resolved: ResolvedConfig, backend: Backend, folders: Folders, note: Note) -> Checkpoint:
    note(f"checkpoint: {describe_source(resolved.model)}")
    return fetch(resolved.model, folders.cache, partial(backend.check_config, resolved))


def _build(
    resolved: ResolvedConfig, backend: Backend, folder: Path, checkpoint: Checkpoint, folders: Folders, note: Note
) -> BuildResult:
    backend.require_resources(resolved, folder)
    size = f"{checkpoint.num_bytes / 1e6:.0f} MB of weights"
    note(f"engine: converting {size} to {resolved.weight_type} for {resolved.backend} on {resolved.device}")
    fingerprint = backend.fingerprint(resolved, checkpoint.content_hash)
    write = partial(backend.write_engine, resolved, checkpoint, note)
    return BuildResult(write_artifact(folder, resolved, fingerprint, write, folders.cache), "built")


def _usable(folder: Path, folders: Folders, note: Note) -> Artifact | None:
    if not folder.exists():
        return None
    try:
        return load_artifact(folder, folders.cache)
    except BuildError as error:
        note(f"not reused: {error}")
        return None


def _sibling_with_weights(model: str, fingerprint: Fingerprint, backend: Backend, folders: Folders) -> Artifact | None:
    """An artifact of a model, possibly of this profile, whose engine files equal those of the fingerprint."""
    for artifact in _loadable(model, folders):
        if artifact.manifest.fingerprint.backend == backend.name and backend.files_digest(
            artifact.manifest.fingerprint
        ) == backend.files_digest(fingerprint):
            return artifact
    return None


def _loadable(model: str, folders: Folders) -> Iterator[Artifact]:
    """All artifacts of a model that are neither damaged nor for another environment."""
    for other in artifacts_of(folders, model):
        try:
            artifact = load_artifact(other, folders.cache)
        except BuildError:
            continue
        yield artifact
