"""Runs OpenAI batch files through the OpenAI API, with concurrent requests; an interrupted run can be resumed.

A line of the input is {"custom_id", "method": "POST", "url": "/v1/chat/completions", "body": {...}}, as in OpenAI's
batch API. Each finished request is appended to a journal beside the output, and a later run skips it. At the end the
output is written atomically, in the order of the input, and the journal is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import httpx

from pipeline.errors import RequestError, ServerError, UserError
from pipeline.files import try_lock, write_atomically
from pipeline.json_lines import json_rows, reading
from pipeline.server.client import is_behind_proxy
from pipeline.server.client_threads import ClientThreads

_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
# Pauses before retries: each is twice as long as the one before, up to the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
# Time in which running requests may finish after Ctrl-C or a failure.
GRACE_S = 10.0
# Status codes after which a request is sent again.
_RETRIED = (429, 503)
# A line of the journal: digest of the request, and its line of the output. The last one may be incomplete.
_DONE = re.compile(rb"[0-9a-f]{64} \{.*\}")
_CUT = re.compile(rb"[0-9a-f]{0,64}|[0-9a-f]{64} .*", re.S)


class BatchRequest(NamedTuple):
    """One line of the input."""

    custom_id: str
    url: str
    body: dict[str, Any]

    @property
    def digest(self) -> str:
        """Key of the request in the journal. It covers all fields, so an edited request is sent again."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()


def read_batch(path: Path) -> list[BatchRequest]:
    """Read the requests of a batch file. Raises UserError if the file cannot be read or is empty, or a line is not a
    valid request; the message holds the line number."""
    requests: list[BatchRequest] = []
    seen: set[str] = set()
    with reading(path), path.open(encoding="utf-8") as file:
        for where, value in json_rows(file, path):
            request = _request(value, where)
            if request.custom_id in seen:
                raise RequestError(f"{where}: custom_id {request.custom_id!r} occurs twice; give each its own.")
            seen.add(request.custom_id)
            requests.append(request)
    if not requests:
        raise RequestError(f"{path} has no requests; write one per line.")
    return requests


def journal_path(out: Path) -> Path:
    """Path of the journal of finished requests."""
    return out.with_name(f"{out.name}.partial")


def read_journal(out: Path) -> dict[str, str]:
    """Output lines of finished requests, by digest of the request. Ignores an incomplete last line. Raises UserError
    for a file that is no journal."""
    try:
        *lines, rest = journal_path(out).read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    if not all(map(_DONE.fullmatch, lines)) or not (lines or _CUT.fullmatch(rest)):
        raise UserError(
            f"{journal_path(out)} is not the journal of an interrupted run, or is damaged. Move it, or name another "
            "output."
        )
    return dict(line.decode().split(" ", 1) for line in lines)


def run_batch(
    requests: Sequence[BatchRequest],
    out: Path,
    base_url: str,
    *,
    api_key: str,
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[str], None],
    on_interrupt: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Send the requests that are not in the journal, then write the output. on_done: receives the custom_id of each
    finished request. on_interrupt: called at Ctrl-C and SIGTERM. The running requests then have GRACE_S to finish.

    Returns the lines of the output with a status other than 200. Raises ServerError if the server cannot be reached; a
    later run continues. Raises UserError for a file that is no journal or cannot be written, or if another run writes
    it."""
    lock, stop = threading.Lock(), threading.Event()
    with _client(base_url, api_key, timeout_s) as client, _opened_journal(out) as journal:
        done = read_journal(out)
        _drop_cut_line(journal_path(out))

        def work(request: BatchRequest) -> None:
            if stop.is_set():
                return
            try:
                result = _result(client, request, stop)
            except ServerError:
                stop.set()
                raise
            if result is None:
                return
            # Lone surrogates, which UTF-8 cannot encode, stay JSON escapes.
            line = json.dumps(result, ensure_ascii=False).encode(errors="backslashreplace").decode()
            with lock:
                try:
                    journal.write(f"{request.digest} {line}\n")
                    journal.flush()
                except OSError as error:
                    raise UserError(
                        f"{journal_path(out)} cannot be written: {error.strerror}. Fix that, then run the command "
                        "again to continue."
                    ) from error
                done[request.digest] = line
                on_done(request.custom_id)

        with ClientThreads(concurrency) as clients:
            sent: list[Future[None]] = []
            try:
                sent += [clients.submit(work, request) for request in requests if request.digest not in done]
                for future in as_completed(sent):
                    future.result()
            except BaseException as error:
                stop.set()
                if not isinstance(error, Exception):
                    on_interrupt()
                clients.shutdown(wait=False, cancel_futures=True)
                wait(sent, GRACE_S)
                raise
        lines = [done[request.digest] for request in requests]
        write_atomically(out, "".join(f"{line}\n" for line in lines))
        journal_path(out).unlink()
    return [result for result in map(json.loads, lines) if result["response"]["status_code"] != 200]


def failure_text(result: dict[str, Any]) -> str:
    """Describe a failed request: custom_id, status, and the server's message."""
    response = result["response"]
    match response["body"]:
        case {"error": {"message": str(message)}}:
            reason = message
        case other:
            reason = json.dumps(other)
    return f"{result['custom_id'][:80]} got status {response['status_code']}: {reason[:200]}"


@contextmanager
def _opened_journal(out: Path) -> Iterator[IO[str]]:
    """The journal, opened to append, and locked against other runs."""
    while True:
        with journal_path(out).open("a", encoding="utf-8") as file:
            if not try_lock(file):
                raise UserError(f"Another `lookahead batch` writes {out}. Wait for it, or name another output.")
            if os.fstat(file.fileno()).st_nlink:  # else a run that has just ended removed it before it was locked
                try:
                    yield file
                finally:
                    with suppress(OSError):  # on a full disk it writes again, and would hide the message
                        file.close()
                return


def _client(base_url: str, api_key: str, timeout_s: float) -> httpx.Client:
    """Client for the base URL of an OpenAI API. It uses the proxy of the environment for other machines. Raises
    ServerError if the URL is not one."""
    trust = is_behind_proxy(base_url)
    if not base_url.startswith(("http://", "https://")):
        raise ServerError(f"{base_url!r} is not the URL of an OpenAI API. Use http://host:port/v1.")
    root = base_url.rstrip("/").removesuffix("/v1")
    limits = httpx.Limits(max_connections=None)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
    return httpx.Client(base_url=root, headers=headers, timeout=timeout_s, limits=limits, trust_env=trust)


def _result(client: httpx.Client, request: BatchRequest, stop: threading.Event) -> dict[str, Any] | None:
    """Result of a request as a line of the output; None if the run stopped before the server accepted the request."""
    pause = _FIRST_PAUSE_S
    while True:
        try:
            # ASCII with escapes, because UTF-8 cannot encode a lone surrogate. The server refuses only that request.
            response = client.post(request.url, content=json.dumps(request.body))
        except httpx.HTTPError as error:
            raise ServerError(
                f"{client.base_url} did not answer {request.custom_id}: {error!r}. Run the command again to continue."
            ) from error
        if response.status_code not in _RETRIED:
            return _line(request, response)
        if stop.wait(_pause_of(response, pause)):
            return None
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _pause_of(response: httpx.Response, pause: float) -> float:
    """The server's Retry-After in seconds, else `pause`."""
    asked = response.headers.get("retry-after", "")
    return float(asked) if asked.isdecimal() else pause


def _line(request: BatchRequest, response: httpx.Response) -> dict[str, Any]:
    """A line of the output in the format of OpenAI's batch API."""
    try:
        body = response.json()
    except ValueError:
        body = {"error": {"message": response.text[:200]}}
    return {
        "id": f"batch_req_{request.custom_id}",
        "custom_id": request.custom_id,
        "response": {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id", ""),
            "body": body,
        },
        "error": None,
    }


def _drop_cut_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed run leaves."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        with path.open("r+b") as file:
            file.truncate(len(whole))


def _request(value: Any, where: str) -> BatchRequest:
    if not isinstance(value, dict) or not isinstance(value.get("custom_id"), str):
        raise RequestError(f'{where}: not an object with "custom_id", "method", "url" and "body".')
    if value.get("method", "POST") != "POST" or value.get("url") not in _URLS:
        raise RequestError(f"{where}: method and url must be POST and one of {', '.join(_URLS)}.")
    if not isinstance(value.get("body"), dict) or value["body"].get("stream"):
        raise RequestError(f"{where}: body must be an object without stream.")
    return BatchRequest(value["custom_id"], value["url"], value["body"])
