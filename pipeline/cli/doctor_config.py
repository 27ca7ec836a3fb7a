"""`lookahead doctor --model M --profile P`: report refusals before anything is downloaded or built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.cli.options import resolve
from pipeline.config.places import places
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.finding import Finding
from pipeline.errors import ConfigError, UserError


def examine_config(model: str, profile: str, overrides: Sequence[str]) -> Iterator[Finding]:
    """Findings for a model under a profile: its settings, and whether this machine can build and serve it. Status "ok"
    where nothing is refused."""
    subject = f"{model} ({profile})"
    try:
        resolved = resolve(model, profile, overrides)
    except UserError as error:
        faults = error.faults if isinstance(error, ConfigError) else ()
        for key, text in faults or ((subject, str(error)),):
            yield Finding(key or subject, "fail", text, "Correct it in the YAML, or with --set.")
        return
    yield Finding(subject, "ok", f"settings hold for backend {resolved.backend}")
    yield _build(resolved)
    yield _serve(resolved)


def _build(resolved: ResolvedConfig) -> Finding:
    from pipeline.engine.artifact import artifact_dir
    from pipeline.engine.backend import backend_of

    try:
        backend_of(resolved.backend).require_resources(
            resolved, artifact_dir(places(), resolved.model.name, resolved.profile.name)
        )
    except UserError as error:
        return Finding("build here", "fail", "refused", str(error))
    return Finding("build here", "ok", "tools, disk and memory suffice")


def _serve(resolved: ResolvedConfig) -> Finding:
    from pipeline.server.startup import check_start

    try:
        found = check_start(resolved, places())
    except UserError as error:
        return Finding("serve here", "fail", "refused", str(error))
    return Finding("serve here", "ok", found)
