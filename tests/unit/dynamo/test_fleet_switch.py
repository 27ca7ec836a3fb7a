"""A gateway is handed over to new servers, and back after an error."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.dynamo import fleet_switch
from pipeline.dynamo.fleet import Fleet
from pipeline.dynamo.running_fleet import as_running
from pipeline.errors import ServerError
from pipeline.files import write_atomically
from pipeline.gateway.spec import GatewaySpec, GatewayStatus, status_path
from pipeline.server.gateway import spec_path
from pipeline.server.run_folders import serving_dir
from pipeline.server.service import ServiceState
from pipeline.server.startup import PreparedServer
from pipeline.server.state import GATEWAY, STATE, gateway_state_path
from tests.server_states import STATE as OLD
from tests.server_states import guarded, state_of
from tests.unit.dynamo.test_fleet import config
from tests.unit.gateway.gateways import spec_of

NEW = state_of({"http": "127.0.0.1:11"}, server_id="la2", http_port=11, grpc_port=12, metrics_port=13)


@pytest.fixture
def new_dir(tmp_path: Path) -> Path:
    """Run folder of the new server, with a gateway that has followed to it."""
    folder = tmp_path / "second"
    spec_path(folder).parent.mkdir(parents=True)
    write_atomically(spec_path(folder), spec_of().model_dump_json())
    status = GatewayStatus(triton_http="127.0.0.1:11", num_running_earlier=0)
    write_atomically(status_path(spec_path(folder)), status.model_dump_json())
    gateway = ServiceState(
        name=GATEWAY, server_id="la3", guard_pid=1, host="127.0.0.1", ports={}, started=0.0, ends_with=("la1",)
    )
    write_atomically(gateway_state_path(folder), gateway.model_dump_json())
    return folder


def hand_over(new_dir: Path) -> None:
    repository = new_dir / "repository"
    (repository / "m").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text('name: "m"\n')
    after = PreparedServer(config(), cast(Any, None), repository)
    fleet = cast(Fleet, SimpleNamespace(state=NEW, servers=[SimpleNamespace(state=NEW)], front_end_port=None))
    fleet_switch._redirect_gateway(OLD, fleet, after, new_dir.parent, new_dir)


def seen(new_dir: Path) -> tuple[str, tuple[str, ...], Path]:
    """Where the gateway is to send requests, the servers with which it ends, and the folder that serves."""
    gateway = ServiceState.model_validate_json(gateway_state_path(new_dir).read_bytes())
    spec = GatewaySpec.model_validate_json(spec_path(new_dir).read_bytes())
    return spec.deployment.tritons[0].http, gateway.ends_with, serving_dir(new_dir.parent)


@pytest.mark.parametrize("is_safe", [False, True])
def test_a_server_for_other_machines_is_exchanged_although_the_new_profile_has_another_host(
    is_safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host counted as another setting of the gateway, so each switch stopped the server first."""
    monkeypatch.setattr(fleet_switch, "fits_beside", lambda *arguments: True)
    with guarded(tmp_path, {GATEWAY: {}}, host="0.0.0.0", gateway_id="la2"):
        spec = spec_of().model_copy(update={"host": "0.0.0.0", "metrics_host": "0.0.0.0"})
        write_atomically(spec_path(tmp_path), spec.model_dump_json())
        resolved = config(f"server.side_channel_safe={str(is_safe).lower()}")
        after = as_running(PreparedServer(resolved, cast(Any, None), tmp_path), tmp_path)

        reason = fleet_switch.obstacle(after, tmp_path)

    assert (reason is not None and "side_channel_safe" in reason) is is_safe


def test_the_gateway_goes_over_to_the_new_server(new_dir: Path) -> None:
    hand_over(new_dir)

    assert seen(new_dir) == ("127.0.0.1:11", ("la1", "la2"), new_dir)


def test_an_interrupted_wait_for_the_last_requests_still_stops_the_old_server(new_dir: Path, monkeypatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    stopped: list[tuple[Path, bool]] = []
    monkeypatch.setattr(fleet_switch.time, "sleep", interrupt)
    monkeypatch.setattr(fleet_switch, "stop_fleet", lambda folder, drain: stopped.append((folder, drain)))

    with pytest.raises(KeyboardInterrupt):
        fleet_switch._end_old(new_dir.parent, new_dir, lambda text: None)

    assert stopped == [(new_dir.parent, True)]


def test_the_gateway_goes_back_if_something_fails_after_it_has_followed(new_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr(fleet_switch, "_FOLLOW_S", 0.0)
    (new_dir / STATE).mkdir()  # cannot be written

    with pytest.raises(IsADirectoryError):
        hand_over(new_dir)

    assert seen(new_dir) == ("triton:1", ("la1",), new_dir.parent)


def test_the_gateway_goes_back_on_a_disk_that_is_full_meanwhile(new_dir: Path, monkeypatch) -> None:
    """It stayed in front of the new server, which was then stopped, and ended with it."""
    monkeypatch.setattr(fleet_switch, "_FOLLOW_S", 0.0)

    def fail(*arguments: object) -> None:
        monkeypatch.setattr("pipeline.files._partial_file", fail)  # from now on nothing can be written
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fleet_switch, "set_serving", fail)
    with pytest.raises(OSError, match="No space"):
        hand_over(new_dir)

    url, ends_with, serving = seen(new_dir)
    assert (url, serving) == ("triton:1", new_dir.parent)
    assert "la1" in ends_with  # so the end of the new server does not end it
    assert not list(spec_path(new_dir).parent.glob(".*"))


def test_a_gateway_that_cannot_report_its_switch_goes_back(new_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr(fleet_switch, "_FOLLOW_S", 0.0)
    monkeypatch.setattr(fleet_switch, "_SETTLE_S", 0.0)
    monkeypatch.setattr(fleet_switch, "about_full_disk", lambda folder: [f"The disk of {folder} is full."])
    status_path(spec_path(new_dir)).unlink()
    before = spec_path(new_dir).stat().st_mtime_ns

    with pytest.raises(ServerError, match=r"the old one still serves\. The disk of .*gateway is full\."):
        hand_over(new_dir)

    assert seen(new_dir) == ("triton:1", ("la1",), new_dir.parent)
    assert spec_path(new_dir).stat().st_mtime_ns > before  # the gateway polls it
