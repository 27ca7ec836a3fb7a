"""Ports are free ones, and addresses those of this machine."""

from __future__ import annotations

import socket

import pytest

from pipeline.config.schema import ServerConfig
from pipeline.errors import ServerError
from pipeline.server.ports import choose_ports
from tests.unit.server.fake_server import FREE


def test_free_ports_differ_and_taken_or_equal_ones_are_named():
    ports = choose_ports(FREE)
    assert len(set(ports)) == 3

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"Port {number} \(server.grpc_port\).*server.grpc_port=0"):
            choose_ports(FREE.model_copy(update={"grpc_port": number}))
    with pytest.raises(ServerError, match="are the same"):
        choose_ports(ServerConfig(http_port=8001))


@pytest.mark.parametrize("host", ["localhost", "no.host.invalid", "192.0.2.1", "::1"])
def test_a_host_that_is_not_this_machine_is_refused_as_such(host):
    with pytest.raises(ServerError, match=f"server.host is {host}, where the server cannot listen"):
        choose_ports(ServerConfig(host=host, http_port=0, grpc_port=0, metrics_port=0))
