"""State file of a running server: written to its run folder at the start, read by later commands."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
from pydantic import Field, ValidationError

from pipeline.config.schema import Frozen
from pipeline.errors import ServerError
from pipeline.gateway.spec import TritonSpec
from pipeline.server.guard import DRAIN_SECONDS, STOP_SECONDS
from pipeline.server.leftovers import run_clean_up
from pipeline.server.ports import LOOPBACK
from pipeline.server.processes import MARK, marked_processes, remove_shm
from pipeline.server.shared_services import kill_processes_of, load_state
from pipeline.server.watch import answers

State = TypeVar("State", bound=Frozen)
STATE = "server.json"
SERVICES, SERVICE_STATE, GATEWAY = "services", "service.json", "gateway"


class GuardedState(Frozen):
    """State of a supervised server or service, stored in its folder for later commands."""

    server_id: str = Field(description="Mark of its processes, and prefix of its shared memory.")
    guard_pid: int = Field(gt=0)
    host: str
    started: float = Field(description="Seconds since the epoch.")
    restarts: int = Field(0, description="Number of restarts by the guard.")
    restart_reason: str = Field("", description="Reason of the last restart.")


class ServerState(GuardedState):
    """State of a running server."""

    http_port: int
    grpc_port: int
    metrics_port: int
    repository: str
    model: str
    profile: str
    clean_up: tuple[str, ...] = Field((), description="Command that removes its container, if it runs in one.")
    gateway_id: str = Field("", description="Mark of the processes of its gateway; empty without a gateway.")
    replicas: int = Field(0, description="Number of servers that its fleet has started; 0 without an OpenAI API.")
    side_channel_safe: bool = Field(False, description="Whether only this machine can read its metrics.")
    triton: TritonSpec = Field(description="Triton's own addresses, for processes of this machine.")

    @property
    def address(self) -> dict[str, object]:
        """Settings of the server section with this address."""
        return {name: getattr(self, name) for name in ("host", "http_port", "grpc_port", "metrics_port")}

    @property
    def http_url(self) -> str:
        return f"http://{reachable(self.host)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{reachable(self.host)}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{LOOPBACK if self.side_channel_safe else reachable(self.host)}:{self.metrics_port}/metrics"


def reachable(host: str) -> str:
    """The address for requests to a server that listens at host."""
    return LOOPBACK if host == "0.0.0.0" else host


def service_dir(run_dir: Path, name: str) -> Path:
    """Folder of a service beside the server of a run folder."""
    return run_dir / SERVICES / name


def gateway_state_path(run_dir: Path) -> Path:
    """State file of the gateway of a run folder."""
    return service_dir(run_dir, GATEWAY) / SERVICE_STATE


def require_no_server(run_dir: Path) -> None:
    """Raise ServerError if a server runs from run_dir."""
    if (running := find_server(run_dir)) is not None:
        raise ServerError(
            f"A server for {running.model} ({running.profile}) already runs from {run_dir} on {running.http_url}. "
            "Stop it with `lookahead stop`, or change its profile with `lookahead switch`. To run another "
            "one beside it, set LOOKAHEAD_ENGINES to another folder, and other ports."
        )


def require_server(run_dir: Path, takes_url: bool = False) -> ServerState:
    """State of the server that runs from run_dir. Raises ServerError if none runs. takes_url: whether the command has
    the option --url, for the message."""
    if (running := find_server(run_dir)) is None:
        other = ", or name one with --url" if takes_url else ""
        raise ServerError(f"No server is running. Start one with `lookahead serve --background`{other}.")
    return running


def find_server(run_dir: Path) -> ServerState | None:
    """State of the first running server of a run folder; None if none runs. It has the gateway's address, also if the
    first server of a fleet does not run."""
    state = next(iter(find_replicas(run_dir).values()), None)
    gateway = load_state(gateway_state_path(run_dir))
    if state is None or state.gateway_id or not gateway:
        return state
    ports = {f"{name}_port": gateway["ports"][name] for name in ("http", "grpc", "metrics")}
    return state.model_copy(update={"host": gateway["host"], "gateway_id": gateway["server_id"], **ports})


def replica_dir(run_dir: Path, number: int) -> Path:
    """Run folder of a Triton server. number: counted from 1; the first server uses run_dir itself."""
    return run_dir if number == 1 else run_dir / f"replica-{number}"


def find_replicas(run_dir: Path) -> dict[int, ServerState]:
    """States of the running Triton servers by their numbers, in order."""
    names = (folder.name.removeprefix("replica-") for folder in run_dir.glob("replica-*"))
    numbers = sorted([1, *(int(name) for name in names if name.isdecimal())])  # users may copy folders
    states = {number: find_own(replica_dir(run_dir, number)) for number in numbers}
    return {number: state for number, state in states.items() if state is not None}


def find_own(folder: Path) -> ServerState | None:
    """State of the server of exactly this run folder, without its replicas; None if it does not run. Removes leftovers
    of a killed server."""
    state = read_state(folder / STATE, ServerState)
    if state is None or is_guard(state.guard_pid, state.server_id):
        return state
    sweep(state, folder)
    return None


def read_state(path: Path, kind: type[State]) -> State | None:
    """Content of a state file; None if there is none. Removes a damaged file, and that of another version of this
    program, unless its process still runs: then raises ServerError."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        match load_state(path):
            case {"guard_pid": int(pid), "server_id": str(server_id)} if is_guard(pid, server_id):
                raise ServerError(
                    f"{path} was written by another version of this program, whose process {pid} still runs. End it "
                    f"with `kill {pid}`."
                ) from None
        path.unlink(missing_ok=True)
        return None


@contextmanager
def of_this_version(path: Path) -> Iterator[None]:
    """Raise ServerError if a file of a running server, which the block reads, has another format."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ServerError(
            f"{path} was written by another version of this program. Run `lookahead stop`, then `lookahead serve`."
        ) from error


def is_ready(state: ServerState) -> bool:
    """Whether a server is ready for requests."""
    return answers(f"{state.http_url}/v2/health/ready")


def listens(server_id: str, ports: Collection[int]) -> bool:
    """Whether the processes with an id accept connections on all of these ports. Another program may have bound a free
    port meanwhile, and its answers could look like those of the server."""
    found = set()
    for pid in marked_processes(server_id):
        with suppress(psutil.Error):
            connections = psutil.Process(pid).net_connections("tcp")
            found |= {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return found.issuperset(ports)


def end_guards(drains: Mapping[int, bool]) -> None:
    """Make guards stop their servers or services at the same time, and wait for their end. drains: by pid, whether
    running requests may finish first, for up to DRAIN_SECONDS."""
    guards = []
    for pid, drain in drains.items():
        with suppress(psutil.NoSuchProcess):
            guards.append(psutil.Process(pid))
            guards[-1].send_signal(signal.SIGUSR1 if drain else signal.SIGTERM)
    wait_for_ends(guards, (DRAIN_SECONDS if any(drains.values()) else STOP_SECONDS) + 10)


def wait_for_ends(processes: Sequence[psutil.Process], timeout_s: float) -> None:
    """Wait until processes have ended. Zombies count as ended: pid 1 of a container may collect them late, or never."""
    deadline = time.monotonic() + timeout_s
    while any(map(_runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_guard(pid: int, server_id: str) -> bool:
    """Whether a process is the guard of the server or service with that id."""
    try:
        process = psutil.Process(pid)
        return _runs(process) and process.environ().get(MARK) == server_id
    except psutil.Error:
        return False


def has_gateway(state: ServerState, run_dir: Path) -> bool:
    """Whether a server's gateway ends with it. After a switch, the gateway belongs to the new server, and in a fleet to
    all servers that run."""
    gateway = load_state(gateway_state_path(run_dir))
    others = [each for each in gateway.get("ends_with", ()) if each != state.server_id]
    return bool(state.gateway_id) and not any(map(marked_processes, others))


def sweep(state: ServerState, run_dir: Path) -> None:
    """Kill the remaining processes of a server; remove its shared memory, its container and its state file."""
    end_leftovers(state.server_id, run_dir / STATE, state.clean_up)
    if has_gateway(state, run_dir):
        end_leftovers(state.gateway_id, gateway_state_path(run_dir))


def end_leftovers(server_id: str, state_path: Path, clean_up: Sequence[str] = ()) -> None:
    """Kill the processes with an id; remove their shared memory and the state file that names the id.

    clean_up: command that removes a container, if there is one.
    """
    kill_processes_of(server_id)
    run_clean_up(clean_up)
    remove_shm(server_id)
    if load_state(state_path).get("server_id") == server_id:
        state_path.unlink(missing_ok=True)
