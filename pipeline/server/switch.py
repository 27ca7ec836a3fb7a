"""Switches the running server to another profile at the same address: stops the old server, then starts the new one.

Used if the two cannot run beside each other; otherwise see `dynamo.fleet_switch`. The new engine and repository are
built before the old server stops. Running requests finish first (for at most `guard.DRAIN_SECONDS`). New requests are
refused until the new server is ready, because an engine that fills the GPU leaves no memory for a second one. If the
new server does not start, the old one is started again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pipeline.config.folders import Folders
from pipeline.config.loading import RESOLVED
from pipeline.config.resolution import load_resolved, resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import artifact_dir, load_artifact
from pipeline.engine.backend import Note, backend_of
from pipeline.errors import ServerError
from pipeline.repository.render import check_repository
from pipeline.server.startup import PreparedServer
from pipeline.server.state import find_server, require_server

T = TypeVar("T")
# Settings of the server section that protect its clients.
_PROTECTION = ("api_keys", "side_channel_safe")


def running_served(folders: Folders, folder: Path) -> PreparedServer:
    """The running server as input of `launch`, without its address (see `dynamo.running_fleet.as_running`). Raises
    ServerError if none runs, BuildError if its engine has changed, RepositoryError or ConfigError if its repository
    cannot be read."""
    state = require_server(folder)
    artifact = load_artifact(artifact_dir(folders, state.model, state.profile), folders.cache)
    repository = Path(state.repository)
    check_repository(repository)
    return PreparedServer(load_resolved(repository / RESOLVED), artifact, repository)


def resolve_other(
    before: PreparedServer,
    profile: str,
    overrides: Sequence[str],
    folders: Folders,
    model: str | None = None,
    note: Note = lambda text: None,
) -> ResolvedConfig:
    """Resolve another profile for the running server's model, backend and device, or for another model. overrides take
    precedence. What protects the running server's clients stays, because its address stays, too."""
    old = before.resolved
    if model is None:
        overrides = (f"backend={old.backend}", f"device={old.device}", *overrides)
    resolved = resolve_config(model or old.model, profile, overrides, where=folders, note=note)
    asked = {override.partition("=")[0] for override in overrides}
    running, new = old.profile.server.model_dump(mode="json"), resolved.profile.server
    unset = [name for name in _PROTECTION if running[name] and not getattr(new, name)]
    lost = [name for name in unset if f"server.{name}" not in asked]
    if not lost:
        return resolved
    note(f"{profile} has no {' and no '.join(f'server.{name}' for name in lost)}; that of the running server stays")
    kept = [f"server.{name}={json.dumps(running[name])}" for name in lost]
    return resolve_config(model or old.model, profile, (*kept, *overrides), where=folders)


def check_switch(before: PreparedServer, after: ResolvedConfig, folders: Folders) -> None:
    """Raise ServerError if a switch would replace the files needed to restore the old profile, or if this machine
    cannot serve the new one. To be called before an engine is built."""
    if (before.resolved.model.name, before.resolved.profile.name) == (after.model.name, after.profile.name):
        raise ServerError(
            f"The server already serves {after.model.name} ({after.profile.name}). To change settings of the same "
            "profile, run `lookahead stop` and start it again."
        )
    backend_of(after.backend).check_start(after, folders)


def switch_server(
    before: PreparedServer,
    after: PreparedServer,
    folder: Path,
    note: Note,
    stop: Callable[[], object],
    start: Callable[[PreparedServer], T],
) -> T:
    """Stop the server that runs from `folder`, which is `before`, and start `after`. stop: ends a server after its
    running requests. start: starts a server that outlives this process.

    If the start fails, starts the old server again and raises ServerError with the reason; an interruption, such as
    KeyboardInterrupt, is raised again.
    """
    old, new = _name(before), _name(after)
    if find_server(folder) is None:
        raise ServerError(f"The server ended while {new} was being built. Start it with `lookahead serve`.")
    try:
        note(f"stopping {old}; running requests finish first")
        stop()
        return start(after)
    except BaseException as error:
        note(f"{new} did not start; starting {old} again")
        stop()  # an interrupted stop may have ended a part of the old server
        try:
            start(before)
        except ServerError as second:
            raise ServerError(f"{new} did not start: {error}\n{old} did not start again either: {second}") from error
        if not isinstance(error, ServerError):
            raise
        raise ServerError(f"{new} did not start, and {old} serves again. Reason: {error}") from error


def _name(served: PreparedServer) -> str:
    return f"{served.resolved.model.name} ({served.resolved.profile.name})"
