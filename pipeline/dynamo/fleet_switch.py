"""Switch of the running servers to another profile without an outage.

The new servers start beside the old ones, the gateway sends new requests to them, and the old ones stop after their
last request. That needs a gateway, which keeps the address and the connections, and memory for both. Otherwise the old
servers are drained and stopped first (`server.switch`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import httpx
from pydantic import ValidationError

from pipeline.config.folders import Folders
from pipeline.dynamo.fleet import Fleet, start_fleet, stop_fleet
from pipeline.dynamo.membership import JOIN_AGAIN, compare_with_members, membership_of
from pipeline.dynamo.model_card import card_dir, write_card
from pipeline.dynamo.running_fleet import has_joined
from pipeline.engine.backend import Note
from pipeline.errors import ServerError
from pipeline.files import about_full_disk, write_atomically, written_beside
from pipeline.gateway.spec import TRITON_KEY_HEADER, GatewayStatus, status_path
from pipeline.repository.names import FRONT_MODEL
from pipeline.server.gateway import deployment_spec, end_gateway_with, read_gateway_spec, set_deployment, spec_path
from pipeline.server.guard import DRAIN_SECONDS
from pipeline.server.run_folders import free_dir, locked, serving_dir, set_serving
from pipeline.server.service import find_service
from pipeline.server.shared_services import load_state
from pipeline.server.startup import PreparedServer, fits_beside
from pipeline.server.state import (
    GATEWAY,
    STATE,
    ServerState,
    find_replicas,
    gateway_state_path,
    replica_dir,
    require_server,
    service_dir,
)
from pipeline.server.switch import switch_server
from pipeline.triton_models.handover import HANDOVER, hand_over

# Time limit for the gateway to switch to the new servers.
_FOLLOW_S = 20.0
# Pause after the gateway's switch, so that the requests sent just before have arrived and idle streams are closed.
_SETTLE_S = 2.0
# Time limit for a server to write its learned state.
_LEAVE_S = 20.0
_POLL_S = 0.1


def switch_fleet(
    before: PreparedServer, after: PreparedServer, folders: Folders, base: Path, note: Note, remedy: str = JOIN_AGAIN
) -> Fleet:
    """Replace the running servers of `before` by detached servers of `after`, at the same address (see `as_running`).
    base: folder of the run folders. remedy: commands for joined machines that this switch leaves without requests.

    On a machine that has joined a fleet, raises ServerError if the fleet would send no requests to the new servers.
    Raises ServerError with the reason if the new servers do not start. The old ones then continue, or start again. Also
    raises it while another switch runs."""
    with locked(base, _refuse):
        folder = serving_dir(base)
        joined, server = has_joined(folder), after.resolved.profile.server
        compare = partial(compare_with_members, server, note=note, remedy=remedy, has_joined=joined)
        if joined:
            compare(membership_of(after.artifact, write_card(after.artifact, free_dir(base))), join=True)
        start = partial(start_fleet, folders=folders, join=joined, compare=False, detach=True, note=note)
        if (reason := obstacle(after, folder)) is None:
            fleet = _exchange(after, partial(start, after, beside=True), base, note)
        else:
            note(f"{reason}; running requests finish, then the old server stops before the new one starts")
            _leave_learned(folder, folder, note)
            stop = partial(stop_fleet, folder, drain=True)
            fleet = switch_server(before, after, folder, note, stop, partial(start, run_dir=folder))
        if server.openai and not joined:
            compare(membership_of(after.artifact, card_dir(after.artifact, serving_dir(base))), join=False)
        return fleet


def _refuse() -> NoReturn:
    raise ServerError("Another `lookahead switch` or `lookahead stop` is running. Wait for it, then try again.")


def obstacle(after: PreparedServer, folder: Path) -> str | None:
    """Reason why the new servers cannot run beside those of the run folder `folder`; None if they can."""
    server = after.resolved.profile.server
    if find_service(folder, GATEWAY) is None:
        return "there is no gateway (server.gateway.enabled), which would send requests to the new server"
    spec = read_gateway_spec(folder)
    if (spec.config, spec.api_keys, spec.metrics_host) != (server.gateway, server.api_keys, server.metrics_host):
        return "the gateway has other settings under the new profile (server.gateway, api_keys, side_channel_safe)"
    if not fits_beside(after, max(1, server.replicas)):
        return "the memory does not hold the old and the new server together"
    return None


def _exchange(after: PreparedServer, start: Callable[..., Fleet], base: Path, note: Note) -> Fleet:
    """Start servers beside the running ones, and stop those after their last request. start: starts the new servers
    from a run folder."""
    old_dir, new_dir = serving_dir(base), free_dir(base)
    old = require_server(old_dir)
    stop_fleet(new_dir)  # servers of an interrupted switch
    _share_gateway(old_dir, new_dir)
    _leave_learned(old_dir, new_dir, note)
    note("starting the new server beside the old one")
    fleet = start(run_dir=new_dir)
    try:
        _redirect_gateway(old, fleet, after, base, new_dir)
    except BaseException:
        fleet.stop()
        raise
    _end_old(old_dir, new_dir, note)
    return fleet


def _end_old(old_dir: Path, new_dir: Path, note: Note) -> None:
    """Stop the old servers after their last request. An interruption, such as KeyboardInterrupt, ends only the wait for
    the gateway: nothing else would stop them."""
    try:
        note("the new server serves; requests of the old one finish")
        time.sleep(_SETTLE_S)
        with suppress(TimeoutError):
            _wait(lambda: _status(new_dir).num_running_earlier == 0, DRAIN_SECONDS)
    except BaseException:
        note("the switch is done; the old server is being stopped")
        raise
    finally:
        stop_fleet(old_dir, drain=True)


def _leave_learned(old_dir: Path, new_dir: Path, note: Note) -> None:
    """Hand the learned state of each old server over to the new server with the same number."""
    for number, state in find_replicas(old_dir).items():
        old, new = (replica_dir(folder, number) / HANDOVER for folder in (old_dir, new_dir))
        if not hand_over(old, new, partial(_wake, state), _LEAVE_S):
            note("the old server did not save its learned state; the new one starts without it")


def _wake(state: ServerState) -> None:
    """Send a request that makes a server check for a handover."""
    url = f"http://{state.triton.http}/v2/models/{FRONT_MODEL}/generate"
    headers = {TRITON_KEY_HEADER: state.triton.key}
    body = {"text_input": "x", "max_tokens": 1, "strategy": "none", "namespace": "handover"}
    with suppress(httpx.HTTPError):
        httpx.post(url, json=body, headers=headers, timeout=_LEAVE_S, trust_env=False)


def _share_gateway(old_dir: Path, new_dir: Path) -> None:
    """Link the gateway's folder into the new run folder."""
    own, other = (service_dir(folder, GATEWAY) for folder in (old_dir, new_dir))
    if own.resolve() == other.resolve():
        return
    if other.is_dir() and not other.is_symlink():
        shutil.rmtree(other)
    other.unlink(missing_ok=True)
    other.parent.mkdir(parents=True, exist_ok=True)
    other.symlink_to(own.resolve())


def _redirect_gateway(old: ServerState, fleet: Fleet, after: PreparedServer, base: Path, new_dir: Path) -> None:
    """Switch the gateway and the state files to the new servers. Raises ServerError if the gateway does not switch."""
    states = [server.state for server in fleet.servers]
    tritons = [state.triton for state in states]
    deployment = deployment_spec(after.resolved, after.repository, tritons, fleet.front_end_port)
    before, path = read_gateway_spec(new_dir), spec_path(new_dir)
    ended_with = load_state(gateway_state_path(new_dir))["ends_with"]
    state = fleet.state.model_copy(update={**old.address, "gateway_id": old.gateway_id})
    # The way back needs no space: on a full disk the old servers must get the requests again.
    with written_beside(path, before.model_dump_json(), private=True) as former:
        end_gateway_with(new_dir, [*ended_with, *(state.server_id for state in states)])
        try:
            set_deployment(new_dir, deployment)
            _wait(lambda: _status(new_dir).triton_http == tritons[0].http, _FOLLOW_S)
            write_atomically(new_dir / STATE, state.model_dump_json(indent=2) + "\n", private=True)
            fleet.servers[0].state = state
            set_serving(base, new_dir)
        except BaseException as error:
            former.touch()  # the gateway compares the time
            former.replace(path)
            with suppress(OSError):
                end_gateway_with(new_dir, ended_with)
            if isinstance(error, TimeoutError):
                time.sleep(_SETTLE_S)  # perhaps it has switched, and could not write so on a full disk
                raise ServerError(
                    "The gateway did not switch to the new server; the old one still serves."
                    + "".join(f" {line}" for line in about_full_disk(path.parent))
                ) from error
            with suppress(TimeoutError):  # the gateway must leave the new server before it stops
                _wait(lambda: _status(new_dir).triton_http == before.deployment.tritons[0].http, _FOLLOW_S)
            raise


def _status(folder: Path) -> GatewayStatus:
    """Status of the gateway. Raises ValidationError or FileNotFoundError until the gateway has written it."""
    return GatewayStatus.model_validate_json(status_path(spec_path(folder)).read_bytes())


def _wait(condition: Callable[[], bool], patience_s: float) -> None:
    """Poll until the condition holds. Raises TimeoutError after patience_s."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if condition():
                return
        except (ValidationError, FileNotFoundError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_POLL_S)
