"""What a build would do, without doing it: for `lookahead engine --dry-run`."""

from __future__ import annotations

from typing import Any

from pipeline.checkpoint.fetch import describe_source, known_content_hash
from pipeline.config.places import Places
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import artifact_dir, load_artifact
from pipeline.engine.builder import builder_for
from pipeline.errors import BuildError


def engine_plan(resolved: ResolvedConfig, places: Places) -> dict[str, Any]:
    """Source, place, sizes and what is there already. Touches no network and writes nothing."""
    folder = artifact_dir(places, resolved.model.name, resolved.profile.name)
    lookahead, builder = resolved.lookahead, builder_for(resolved.backend)
    builder.check(resolved)
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
        **builder.plan(resolved),
        "state": _state(resolved, places),
    }


def _state(resolved: ResolvedConfig, places: Places) -> str:
    folder = artifact_dir(places, resolved.model.name, resolved.profile.name)
    if not folder.exists():
        return "not built"
    try:
        present = load_artifact(folder, places.cache)
    except BuildError as error:
        return f"to be built again: {error}"
    # A checkpoint whose hash only a fetch would tell is taken to be the one that the artefact was built from.
    content_hash = known_content_hash(resolved.model) or present.manifest.fingerprint.checkpoint
    wanted = builder_for(resolved.backend).fingerprint(resolved, content_hash)
    if changes := list(wanted.differences(present.manifest.fingerprint)):
        return f"to be built again: {'; '.join(changes)}"
    return "up to date" if present.resolved == resolved else "engine up to date, settings to be updated"
