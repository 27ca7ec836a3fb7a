"""Discovery of the machines of a fleet, and an etcd that does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ServerConfig
from pipeline.errors import ServerError
from pipeline.server import discovery, watch
from pipeline.server.discovery import (
    ETCD_ENDPOINTS,
    ETCD_LEASE_TTL,
    FILE_KV,
    check_etcd,
    etcd_urls,
    listed_s,
    needed_urls,
)
from tests.http_server import Handler, serving

CLOSED = "http://127.0.0.1:1"


def server(discovery: str) -> ServerConfig:
    return resolve_config("tiny-random-llama", "latency", (f"server.discovery={discovery}",)).profile.server


class Etcd(Handler):
    """Answers with the status and the body of a test."""

    health = 200, b'{"health":"true","reason":""}'

    def do_GET(self) -> None:
        status, body = self.health if self.path == "/health" else (404, b"")
        self.answer(body, status)


@pytest.fixture
def etcd() -> Iterator[int]:
    """Port of a server that answers as etcd does."""
    with serving(Etcd) as port:
        yield port


def test_a_worker_of_another_machine_is_listed_until_its_lease_has_ended():
    assert listed_s(server("file"), {}) == 0
    assert listed_s(server("file"), {FILE_KV: "/shared", ETCD_LEASE_TTL: "60"}) == 12
    assert listed_s(server("etcd"), {}) == 12
    assert listed_s(server("etcd"), {ETCD_LEASE_TTL: "60"}) == 62
    for invalid in ("soon", "6_0", " 60"):
        assert listed_s(server("etcd"), {ETCD_LEASE_TTL: invalid}) == 12


def test_one_member_of_etcd_that_answers_suffices(etcd):
    endpoints = f"{CLOSED}, 127.0.0.1:{etcd}/"

    assert etcd_urls({ETCD_ENDPOINTS: endpoints}) == [CLOSED, f"http://127.0.0.1:{etcd}"]
    assert "etcd answers" in check_etcd({ETCD_ENDPOINTS: endpoints})


@pytest.mark.parametrize(
    ("endpoints", "reason"),
    [
        (CLOSED, "Connection refused"),
        ("https://127.0.0.1:1", "Connection refused"),
        (" , ", "no URL"),
        ("ftp://127.0.0.1:1", "unsupported protocol"),
        ("http://[::1", "Invalid IPv6 URL"),
    ],
)
def test_an_etcd_that_cannot_be_reached_is_named(endpoints, reason):
    with pytest.raises(ServerError, match=rf"no etcd answers \(.*{reason}.*\)\. Start etcd, or set ETCD_ENDPOINTS"):
        check_etcd({ETCD_ENDPOINTS: endpoints})


@pytest.mark.parametrize(("environment", "value"), [({ETCD_ENDPOINTS: CLOSED}, f"'{CLOSED}'"), ({}, "not set")])
def test_the_setting_of_etcd_is_quoted(environment, value, monkeypatch):
    monkeypatch.setattr(discovery, "_DEFAULT_ENDPOINT", CLOSED)

    with pytest.raises(ServerError, match=rf"to its URL; ETCD_ENDPOINTS is {value}\.$"):
        check_etcd(environment)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [((503, b'{"health":"false"}'), "it is not healthy"), ((200, b"<html>"), "another program answers there")],
)
def test_what_answers_but_does_not_serve_is_named(etcd, answer, reason, monkeypatch):
    monkeypatch.setattr(Etcd, "health", answer)

    with pytest.raises(ServerError, match=reason):
        check_etcd({ETCD_ENDPOINTS: f"http://127.0.0.1:{etcd}"})


def test_the_check_at_the_start_and_the_guard_connect_to_the_port_that_dynamo_uses(monkeypatch):
    """Its client of etcd takes the port of the scheme, not 2379."""
    monkeypatch.setenv(ETCD_ENDPOINTS, "https://etcd.example")
    connected: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
        connected.append(address)
        return socket.socket()

    monkeypatch.setattr(watch.socket, "create_connection", connect)

    assert "etcd answers" in check_etcd({ETCD_ENDPOINTS: "https://etcd.example"})
    assert watch.any_answers(needed_urls(server("etcd")))
    assert connected == [("etcd.example", 443)] * 2
