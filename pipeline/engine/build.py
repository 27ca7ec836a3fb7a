"""ResolvedConfig -> EngineArtifact: plan what is to be done, then do it unless it is done already. Chooses the
backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.fetch import describe_source, fetch, known_content_hash
from pipeline.config.places import Places
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import (
    MANIFEST,
    Artifact,
    artifact_dir,
    build_lock,
    load_artifact,
    refresh_resolved,
    share_engine,
    write_artifact,
)
from pipeline.engine.builder import builder_for
from pipeline.engine.fingerprint import Fingerprint
from pipeline.errors import BuildError

# built: from the checkpoint. shared: weights taken from another profile. updated: only settings that the engine does
# not depend on. reused: nothing to do.
Outcome = Literal["built", "shared", "updated", "reused"]


@dataclass(frozen=True, slots=True)
class BuildResult:
    artifact: Artifact
    outcome: Outcome


def build_engine(
    resolved: ResolvedConfig, places: Places, *, force: bool = False, note: Callable[[str], None] = lambda text: None
) -> BuildResult:
    """The artefact for a resolved config. `force` builds from the checkpoint whatever is there. `note` is told of
    each step. Raises CheckpointError and BuildError."""
    builder = builder_for(resolved.backend)
    builder.check(resolved)
    folder = artifact_dir(places, resolved.model.name, resolved.profile.name)
    with build_lock(places, resolved.model.name, note):
        checkpoint: Checkpoint | None = None
        content_hash = known_content_hash(resolved.model)
        if content_hash is None or force:
            note(f"checkpoint: {describe_source(resolved.model)}")
            checkpoint = fetch(resolved.model, places.cache)
            content_hash = checkpoint.content_hash
        fingerprint = builder.fingerprint(resolved, content_hash)
        present = None if force else _usable(folder, places, note)
        if present is not None and present.manifest.fingerprint == fingerprint:
            if present.resolved == resolved:
                return BuildResult(present, "reused")
            return BuildResult(refresh_resolved(present, resolved, places.cache), "updated")

        sibling = None if force else _sibling_with_weights(folder, fingerprint, places)
        if sibling is not None:
            note(f"weights: shared with profile {sibling.manifest.profile}")

            def share(partial: Path) -> None:
                share_engine(sibling, partial)

            return BuildResult(write_artifact(folder, resolved, fingerprint, share, places.cache), "shared")

        if checkpoint is None:
            note(f"checkpoint: {describe_source(resolved.model)}")
            checkpoint = fetch(resolved.model, places.cache)
        source = checkpoint
        builder.require_resources(resolved, folder)
        note(
            f"engine: {checkpoint.num_bytes / 1e6:.0f} MB of weights into {resolved.dtype} "
            f"for {resolved.backend} on {resolved.device}"
        )

        def write(partial: Path) -> None:
            builder.write_engine(resolved, source, partial)

        return BuildResult(write_artifact(folder, resolved, fingerprint, write, places.cache), "built")


def _usable(folder: Path, places: Places, note: Callable[[str], None]) -> Artifact | None:
    if not folder.exists():
        return None
    try:
        return load_artifact(folder, places.cache)
    except BuildError as error:
        note(f"not reused: {error}")
        return None


def _sibling_with_weights(folder: Path, fingerprint: Fingerprint, places: Places) -> Artifact | None:
    """An artefact of the same model, this profile's old one included, whose engine files would come out the same."""
    for other in sorted(path.parent for path in folder.parent.glob(f"*/{MANIFEST}")):
        try:
            artifact = load_artifact(other, places.cache)
        except BuildError:
            continue  # a damaged or foreign artefact has nothing to share; whoever loads it is told why
        if artifact.manifest.fingerprint.weights_digest == fingerprint.weights_digest:
            return artifact
    return None
