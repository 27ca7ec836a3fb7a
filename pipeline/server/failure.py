"""Explains why a server did not start, from its log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.files import about_full_disk
from pipeline.server.log import VERBOSE_LOG, was_stopped
from pipeline.server.watch import IDLE

# Triton reports a failed Python model as "failed to load 'name' version 1: Internal: <Exception>: <text>\n\nAt:\n ...".
_FAILED_MODEL = re.compile(
    r"failed to load '(?P<model>\w+)' version \d+: \w[\w ]*: (?P<reason>.*?)(?:\\n\\nAt:|\"$)", re.M
)
_OUR_ERRORS = re.compile(r"^(?:\w+Error: )(?P<sentence>[A-Z].*)", re.S)
_CANNOT_LISTEN = re.compile(r"failed to start (?:HTTP|GRPC|Metrics) service", re.I)
_CONFLICT = re.compile(rf"already in use|{_CANNOT_LISTEN.pattern}", re.I)
_DEAD_PROCESS = re.compile(r"Stub process '\S+' is not healthy")
# Happens rarely, mostly on busy machines: https://github.com/triton-inference-server/server/issues/8882
_BROKEN_LOCK = "boost::interprocess::lock_exception"
# Triton takes a socket that it cannot create for a port in use.
_FEW_FILES = "Too many open files"
_SMALL_SHM = re.compile(r"initialize shared memory key|increase the shared memory pool size")
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (?P<library>\S+):")
# Folder of the server's shared memory.
SHM = Path("/dev/shm")
TAIL_LINES = 15


def transient_failure(log_paths: Iterable[Path]) -> str | None:
    """Reason of a failure after which a second start may succeed; None for other failures. log_paths: logs of all
    processes."""
    text = "\n".join(map(_text, log_paths))
    if _FEW_FILES in text:
        return None
    if _CONFLICT.search(text):  # a second start uses other free ports, and names a fixed one that is in use
        return "another program took a port of the server first"
    if _BROKEN_LOCK in text:
        return "a lock of Triton's Python backend failed"
    if IDLE in text:
        return "Triton's processes waited for each other"
    return None


def cannot_listen(log_path: Path) -> bool:
    """Whether a port of tritonserver was in use. Triton then exits, which can crash or hang, while it still answers on
    the ports that it has."""
    return _CANNOT_LISTEN.search(_text(log_path)) is not None


def explain_failure(log_path: Path) -> str:
    """One sentence for a failure that the user can fix, else the end of the log."""
    if was_stopped(log_path):
        return "The server was stopped before it was ready."
    text = _text(log_path)
    if found := _MISSING_LIBRARY.search(text):
        return (
            f"The server or its Python backend needs {found['library']}, which is not installed. Install it, or "
            f"set LOOKAHEAD_TRITONSERVER to another tritonserver. Log: {log_path}"
        )
    if _FEW_FILES in text:
        return f"The limit of open files is too small for the server. Raise it (ulimit -n 1024). Log: {log_path}"
    if _CONFLICT.search(text):
        return (
            "Another program uses a port of the server. Stop that program, or use free ports: --set "
            f"server.http_port=0 --set server.grpc_port=0 --set server.metrics_port=0. Log: {log_path}"
        )
    if _SMALL_SHM.search(text):
        if not os.access(SHM, os.W_OK):
            return f"This user cannot write to {SHM}, where the server has its shared memory. Log: {log_path}"
        return (
            "/dev/shm has too little space for the server, which needs about 1 MB per model instance and more for "
            f"requests. Make it larger (docker: --shm-size=1g), or remove files from it. Log: {log_path}"
        )
    if found := _FAILED_MODEL.search(text):
        reason = found["reason"].replace("\\n", "\n").replace('\\"', '"')
        if ours := _OUR_ERRORS.match(reason):
            reason = ours["sentence"]
        if _DEAD_PROCESS.search(reason):
            reason = "its process died. Too little memory is the usual cause; the kernel's log (`dmesg`) shows it."
        return f"The model {found['model']} could not be loaded: {reason}\nLog: {log_path}"
    tail = "\n".join([*text.splitlines()[-TAIL_LINES:], *about_full_disk(log_path.parent)])
    return f"The server ended before it was ready. End of {log_path}:\n{tail}"


def _text(path: Path) -> str:
    """The server's output and Triton's verbose log, if there is one."""
    files = [file for file in (path, path.with_name(VERBOSE_LOG)) if file.is_file()]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
