"""Another program takes a port between its choice and the start of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.folders import folders
from pipeline.config.resolution import resolve_config
from pipeline.engine.backend import backend_of
from pipeline.engine.start_command import Ports
from pipeline.errors import ServerError
from pipeline.server.ports import LOOPBACK, choose_ports, free_port
from pipeline.server.server import RunningServer, start_server
from pipeline.server.startup import launch
from pipeline.server.state import find_server
from tests.http_server import Handler, serving
from tests.integration.servers import TORCH, ask
from tests.servers import BARE, left_over

pytestmark = [pytest.mark.triton, pytest.mark.slow]


class OtherProgram(Handler):
    """Answers any request with status 200, as another server of ours answers readiness checks."""

    def do_GET(self) -> None:
        self.answer()


@contextmanager
def losing(port_of: Callable[[Ports, Ports], int], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Another program takes the first port that is chosen. port_of: the port, from the public ones and Triton's. Yields
    a list for it."""
    taken: list[int] = []

    def choose(*arguments: Any) -> Any:
        chosen = choose_ports(*arguments)
        if not taken:
            taken.append(port_of(chosen[0], chosen[1].ports))
            stack.enter_context(serving(OtherProgram, taken[0]))
        return chosen

    monkeypatch.setattr("pipeline.server.server.choose_ports", choose)
    with ExitStack() as stack:
        yield taken


def start(tmp_path: Path, *overrides: str, note: Callable[[str], None] = lambda text: None) -> RunningServer:
    """Start a tritonserver without models or a gateway."""
    (tmp_path / "repository").mkdir()
    resolved = resolve_config("tiny-random-llama", "latency", (*TORCH, *BARE, *overrides))
    parts = resolved, tmp_path / "repository", tmp_path / "run"
    make_command = backend_of("torch").make_command(*parts[:2], folders(), parts[2], None, note)
    return start_server(*parts, make_command, note=note)


@pytest.mark.parametrize("kind", Ports._fields)
def test_a_free_port_is_chosen_again(tmp_path, monkeypatch, kind):
    notes: list[str] = []
    with losing(lambda public, inner: getattr(inner, kind), monkeypatch) as taken:
        running = start(tmp_path, note=notes.append)
        running.stop()
    assert "another program took a port of the server first; starting again" in notes
    assert str(taken[0]) not in running.state.model_dump_json()
    assert not left_over(running.state.server_id)


@pytest.mark.parametrize("kind", Ports._fields)
def test_a_fixed_port_is_named(tmp_path, monkeypatch, kind):
    lost = losing(lambda public, inner: getattr(inner, kind), monkeypatch)
    with lost as taken, pytest.raises(ServerError) as caught:
        start(tmp_path, f"server.{kind}_port={free_port(LOOPBACK)}")
    assert str(caught.value).startswith(f"Port {taken[0]} (server.{kind}_port) on 127.0.0.1 cannot be used: Address")
    assert find_server(tmp_path / "run") is None


def test_free_ports_of_a_gateway_are_chosen_again(served, shared_where, tmp_path, monkeypatch):
    # Nobody waits for the end of tritonserver, which does not end.
    monkeypatch.setattr("pipeline.server.server.GATEWAY_LEAD_S", float("inf"))
    with losing(lambda public, inner: public.http, monkeypatch) as taken:
        running = launch(served, shared_where, tmp_path)
        assert running.state.http_port != taken[0]
        assert ask(running, max_tokens=4).finish_reason == "length"
        running.stop()
    assert not left_over(running.state.server_id)
