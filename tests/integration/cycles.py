"""One life cycle of a server under requests: start, requests, kill or stop, and the checks after it."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from pipeline.config.folders import Folders
from pipeline.errors import RequestError, ServerError
from pipeline.repository.names import FRONT_MODEL
from pipeline.server.client import TextQuery, complete
from pipeline.server.server import RunningServer, stop_server
from pipeline.server.startup import PreparedServer, launch
from pipeline.server.state import find_server
from tests.integration.servers import PROMPT, becomes_ready
from tests.patience import PATIENCE_S
from tests.servers import left_over, processes_of, wait_for

WAYS = ("stop", "drain", "kill server", "kill guard", "kill gateway", "kill all")


def keep_asking(server: RunningServer, stop: threading.Event, number: int) -> list[int]:
    """Status codes of requests until the stop; 0 for a connection that was refused or cut."""
    codes, url = [], f"{server.state.http_url}/v2/models/{FRONT_MODEL}/generate"
    while not stop.is_set():
        body = {"text_input": PROMPT, "max_tokens": 1 + 40 * (number % 3), "strategy": ("none", "trie")[number % 2]}
        try:
            if number % 4 == 3:
                complete(TextQuery(PROMPT, 20), server.state.grpc_url, "grpc", timeout_s=PATIENCE_S)
                codes.append(200)
            else:
                codes.append(httpx.post(url, json=body, timeout=PATIENCE_S).status_code)
        except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, ServerError, RequestError):
            codes.append(0)
            time.sleep(0.05)
    return codes


def victims(server: RunningServer, how: str) -> list[int]:
    if how == "kill guard":
        return [server.state.guard_pid]
    name = {"kill server": "tritonserver", "kill gateway": "pipeline.gateway"}.get(how, "")
    ids = (server.state.server_id, server.state.gateway_id)
    return [p.pid for mark in ids for p in processes_of(mark) if name in " ".join(p.cmdline())]


def end(server: RunningServer, how: str, where: Folders) -> None:
    if how in ("stop", "drain"):
        stop_server(server.run_dir, drain=how == "drain")
        return
    for pid in victims(server, how):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if how in ("kill server", "kill gateway"):
        becomes_ready(server.state)  # it comes back by itself
    server.stop()


def live(served: PreparedServer, where: Folders, folder: Path, how: str, after_s: float) -> None:
    """Start a server in a folder, have it asked by six clients, end it in one of WAYS after some seconds, and check
    that every request was answered or cut and that nothing is left."""
    server = launch(served, where, folder)
    stop = threading.Event()
    with ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(keep_asking, server, stop, client) for client in range(6)]
        time.sleep(after_s)
        try:
            end(server, how, where)
        finally:
            stop.set()
        codes = {code for client in clients for code in client.result(PATIENCE_S + 60)}

    assert codes <= {0, 200, 400, 503, 504}
    assert find_server(folder) is None
    marks = (server.state.server_id, server.state.gateway_id)
    wait_for(lambda: not any(left_over(mark) for mark in marks))
    assert not list(folder.rglob("*.partial"))
    assert psutil.Process().num_fds() < 500
