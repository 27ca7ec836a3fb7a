"""What counts as an answer of a server."""

from __future__ import annotations

import socket
import threading

import pytest

from pipeline.server import watch
from pipeline.server.watch import answers, status_of
from tests.patience import PATIENCE_S


def test_a_server_with_certificates_answers_if_its_port_is_open():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # from now on no other process can listen there
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/health"
        assert not answers(url)
        listener.listen()
        assert answers(url)


@pytest.mark.parametrize(
    ("line", "status"),
    [("HTTP/1.1 404 Not Found", 404), ("HTTP/1.0 200", 200), ("HTTP/1.1", None), ("SSH-2.0 200", None), ("", None)],
)
def test_the_status_of_a_response_is_read_and_other_protocols_have_none(line, status, monkeypatch):
    monkeypatch.setattr(watch, "_ANSWER_LIMIT_S", PATIENCE_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                received.append(connection.recv(65536))
                connection.sendall(f"{line}\r\n\r\n".encode() if line else b"")

        received: list[bytes] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        assert status_of(f"http://127.0.0.1:{port}/v2/health") == status
        thread.join()
    assert received[0].startswith(f"GET /v2/health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode())
