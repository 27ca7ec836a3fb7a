"""Another profile on the running server: built while the old one serves, then exchanged at the same address.

The old server is stopped only when the new engine and repository are there. Running requests finish first (for at most
`guard.DRAIN_SECONDS`); new ones are refused until the new server is ready, as an engine that fills the GPU leaves no
room for a second one. If the new server does not come up, the old one is started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import yaml

from pipeline.config.places import Places
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import artifact_dir, load_artifact
from pipeline.engine.backend import Note
from pipeline.errors import ServerError
from pipeline.repository.render import ModelRepository, check_repository
from pipeline.server.road import Served
from pipeline.server.state import ServerState, require_server

T = TypeVar("T", covariant=True)


def running_served(places: Places, folder: Path) -> Served:
    """What the running server was started from, with the address that it listens on. Raises ServerError if none runs,
    BuildError if its engine is not what it was."""
    state = require_server(folder)
    artifact = load_artifact(artifact_dir(places, state.model, state.profile), places.cache)
    repository = ModelRepository(Path(state.repository), check_repository(Path(state.repository)))
    return _at(Served(artifact.resolved, artifact, repository), state)


def resolve_other(
    before: Served, profile: str, overrides: Sequence[str], folder: Path, places: Places
) -> ResolvedConfig:
    """The running server's model, backend and device under another profile. overrides win."""
    resolved = before.resolved
    # As it is served, overrides included; the name of a config is that of its file.
    path = folder / f"{resolved.model.name}.yaml"
    path.write_text(yaml.safe_dump(resolved.model.model_dump(mode="json")), encoding="utf-8")
    kept = (f"backend={resolved.backend}", f"device={resolved.device}")
    return resolve_config(str(path), profile, (*kept, *overrides), where=places)


def require_other(before: Served, after: ResolvedConfig) -> None:
    """Raises ServerError if a switch would replace the files that the way back needs."""
    if (before.resolved.model.name, before.resolved.profile.name) == (after.model.name, after.profile.name):
        raise ServerError(
            f"{after.model.name} ({after.profile.name}) is what the server serves already. For other settings of the "
            "same profile, `lookahead stop` and start it again."
        )


class Stop(Protocol):
    """Ends what runs from a run folder. Returns the server that was stopped, if any was."""

    def __call__(self, run_dir: Path, drain: bool = False) -> ServerState | None: ...


class Start(Protocol[T]):
    """Starts what a server section asks for."""

    def __call__(
        self, served: Served, places: Places, folder: Path, /, *, detach: bool = False, note: Note = lambda text: None
    ) -> T: ...


def switch_server(
    before: Served, after: Served, places: Places, folder: Path, note: Note, stop: Stop, start: Start[T]
) -> T:
    """Exchange what runs for processes that serve `after`. They run detached. stop, start: how that is done.

    Raises ServerError if it does not come up, with the reason, after starting the old one again."""
    old, new = _name(before), _name(after)
    note(f"stopping {old}; running requests finish first")
    state = stop(folder, drain=True)
    if state is None:
        raise ServerError(f"The server ended while {new} was being built. Start it with `lookahead serve`.")
    try:
        return start(_at(after, state), places, folder, detach=True, note=note)
    except (ServerError, KeyboardInterrupt) as error:
        note(f"{new} did not come up; going back to {old}")
        try:
            start(_at(before, state), places, folder, detach=True, note=note)
        except ServerError as second:
            raise ServerError(f"{new} did not come up: {error}\n{old} did not come back either: {second}") from error
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ServerError(f"{new} did not come up, and {old} serves again. Reason: {error}") from error


def _at(served: Served, state: ServerState) -> Served:
    """The same on the address of a server, which clients know."""
    address = {
        "host": state.host,
        "http_port": state.http_port,
        "grpc_port": state.grpc_port,
        "metrics_port": state.metrics_port,
    }
    profile = served.resolved.profile
    profile = profile.model_copy(update={"server": profile.server.model_copy(update=address)})
    return replace(served, resolved=served.resolved.model_copy(update={"profile": profile}))


def _name(served: Served) -> str:
    return f"{served.resolved.model.name} ({served.resolved.profile.name})"
