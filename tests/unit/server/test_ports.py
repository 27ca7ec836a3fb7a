"""Free ports, and addresses of this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pipeline.config.schema import GatewayConfig
from pipeline.errors import ServerError
from pipeline.server.ports import choose_ports
from tests.server_states import state_of
from tests.unit.server.fake_server import FREE


def test_free_ports_differ_and_taken_or_equal_ones_are_named():
    ports, listening, _ = choose_ports(FREE)
    assert len(set(ports)) == 3
    assert (listening.ports, listening.key) == (ports, None)
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < first_outgoing  # else a connection may take one before the server listens

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"Port {number} \(server.grpc_port\).*server.grpc_port=0"):
            choose_ports(FREE.model_copy(update={"grpc_port": number}))


def test_all_taken_ports_are_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        numbers = [taken.getsockname()[1] for taken in (first, second)]
        with pytest.raises(ServerError) as caught:
            choose_ports(FREE.model_copy(update=dict(zip(("http_port", "metrics_port"), numbers, strict=True))))
    assert f"Ports {numbers[0]} (server.http_port), {numbers[1]} (server.metrics_port) on" in str(caught.value)
    assert str(caught.value).endswith("--set server.http_port=0 --set server.metrics_port=0")


@pytest.mark.parametrize("gateway", [False, True])
def test_the_ports_of_the_openai_api_differ_from_the_others_and_a_taken_one_is_named(gateway):
    config = FREE.model_copy(update={"gateway": GatewayConfig(enabled=gateway)})
    ports, listening, openai = choose_ports(config, with_openai=True)

    assert len({*ports, *listening.ports, *openai}) == (8 if gateway else 4)
    assert (openai.public != openai.front_end) == gateway
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        config = config.model_copy(update={"openai_port": number})
        with pytest.raises(ServerError, match=rf"Port {number} \(server.openai_port\)"):
            choose_ports(config, with_openai=True)
        choose_ports(config)


def test_behind_a_gateway_triton_listens_on_other_ports_of_the_loopback_device_and_asks_for_a_key():
    config = FREE.model_copy(update={"gateway": GatewayConfig(), "host": "0.0.0.0"})
    (ports, listening, _), (_, other, _) = choose_ports(config), choose_ports(config)

    assert len({*ports, *listening.ports}) == 6
    assert listening.host == "127.0.0.1"
    assert listening.key
    assert listening.key != other.key


@pytest.mark.parametrize("safe", [False, True])
def test_metrics_are_for_this_machine_only_where_side_channels_are_closed(safe):
    """`status` asked for them at the other address, and failed."""
    config = FREE.model_copy(update={"host": "192.0.2.1", "side_channel_safe": safe})
    host = "127.0.0.1" if safe else "192.0.2.1"

    assert config.metrics_host == host
    assert state_of(host=config.host, side_channel_safe=safe).metrics_url == f"http://{host}:3/metrics"


def test_a_host_that_is_not_this_machine_is_refused_as_such():
    with pytest.raises(ServerError, match=r"The server cannot listen on server\.host = 192\.0\.2\.1: Cannot assign"):
        choose_ports(FREE.model_copy(update={"host": "192.0.2.1"}))
