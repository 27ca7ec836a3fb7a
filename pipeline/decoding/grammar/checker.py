"""Checks grammars in a separate process, because a hostile one may overflow the stack or exhaust the memory.

The parent writes one grammar per line, as JSON, and reads back one line: an empty text, or the fault. The child runs
this file by its path, so that it imports only llguidance.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path

import llguidance

# Limit of processor time per grammar, which does not depend on the load of the machine.
CPU_LIMIT_S = 3
# Limit of wall time, for a child that waits without using the processor.
_TIMEOUT_S = 60.0
_MEMORY_BYTES = 1 << 30
# The child's stack is smaller than the parent's, so a grammar that passes the check fits the parent's.
_STACK_BYTES = 4 << 20
PARENT_STACK_BYTES = 4 * _STACK_BYTES


def parser_limits() -> llguidance.LLParserLimits:
    """Limits of a grammar's size and of the work per token. A request that exceeds them ends with an error."""
    return llguidance.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class Checkers:
    """Child processes. One of them is kept for the next grammar."""

    def __init__(self) -> None:
        self._idle: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def check(self, grammar: str) -> str:
        """Return the fault of a grammar, empty if there is none."""
        with self._lock:
            child, self._idle = self._idle, None
        if child is not None and child.poll() is not None:  # another process, such as the system's, has ended it
            _end(child)
            child = None
        child = child or _start()
        reply = _ask(child, grammar)
        with self._lock:
            if reply is not None and self._idle is None:
                self._idle, child = child, None
        if child is not None:
            _end(child)
        if reply is None:
            return f"compiling it takes more than {CPU_LIMIT_S} s or {_MEMORY_BYTES >> 20} MiB, or nests too deeply"
        return reply

    def close(self) -> None:
        """End the idle child, if any."""
        with self._lock:
            child, self._idle = self._idle, None
        if child is not None:
            _end(child)


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _ask(child: subprocess.Popen[str], grammar: str) -> str | None:
    """The child's reply; None if it has died or is late."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(json.dumps(grammar) + "\n")
        child.stdin.flush()
        # `select` fails if the process has more than 1,024 open files.
        ready = wait([child.stdout.fileno()], _TIMEOUT_S)
        line = child.stdout.readline() if ready else ""
        return str(json.loads(line)) if line else None
    except (OSError, ValueError):  # the child died while it read or wrote
        return None


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def _serve() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        # At the soft limit the system sends SIGXCPU, which ends the process.
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + CPU_LIMIT_S, resource.RLIM_INFINITY)
        )
        reply = llguidance.LLMatcher.validate_grammar(json.loads(line), None, limits=parser_limits())
        print(json.dumps("" if reply.startswith("WARNING") else reply), flush=True)


if __name__ == "__main__":
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()
