"""`lookahead doctor --model M --profile P`: report refusals before anything is downloaded or built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipeline.cli.options import resolve
from pipeline.config.places import places
from pipeline.engine.artifact import artifact_dir
from pipeline.engine.backend import backend_of
from pipeline.engine.finding import Finding
from pipeline.errors import ConfigError, UserError
from pipeline.server.startup import check_start


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
    backend = backend_of(resolved.backend)
    folder = artifact_dir(places(), resolved.model.name, resolved.profile.name)

    def check_build() -> str:
        backend.require_resources(resolved, folder)
        return "tools, disk and memory suffice"

    yield _tried("build here", check_build)
    yield _tried("serve here", lambda: check_start(resolved, places()))


def _tried(part: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(part, "ok", check())
    except UserError as error:
        return Finding(part, "fail", "refused", str(error))
