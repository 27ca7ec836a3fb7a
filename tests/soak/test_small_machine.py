"""Small shared memory, and a full disk: a message, no hang, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.folders import CODE, Folders
from pipeline.server.startup import PreparedServer
from tests.patience import PATIENCE_S
from tests.servers import FREE_PORTS

# Of a command that starts a server, and perhaps starts a part of it again: three minutes on a busy machine.
LIMIT_S = 3 * PATIENCE_S
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + PATIENCE_S)]


def has_namespaces() -> bool:
    """Whether a mount that only a command sees can be made."""
    words = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="this machine lets no process mount for itself")


def run_with(mount: str, where: Folders, *words: str) -> subprocess.CompletedProcess[str]:
    """A command with a mount that it alone sees."""
    environment = os.environ | {"LOOKAHEAD_ENGINES": str(where.engines), "LOOKAHEAD_CACHE": str(where.cache)}
    script = f'{mount} && exec "$@"'
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", sys.executable, "-m", "pipeline", *words]
    return subprocess.run(argv, env=environment, cwd=CODE, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@needs_namespaces
@pytest.mark.triton
def test_a_server_without_room_in_shared_memory_says_so(served: PreparedServer, where: Folders) -> None:
    words = ["--model", "tiny-random-llama", "--set", "backend=torch", "--set", "device=cpu"]
    words += [word for setting in FREE_PORTS for word in ("--set", setting)]

    done = run_with("mount -t tmpfs -o size=1m tmpfs /dev/shm", where, "serve", "--background", *words)

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "/dev/shm" in done.stderr


@needs_namespaces
def test_the_end_of_a_log_on_a_full_disk_says_so(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from pipeline.files import log_tail; print(log_tail(Path('{tmp_path}/log')))"
    script = (
        f'mount -t tmpfs -o size=64k tmpfs {tmp_path} && echo words > {tmp_path}/log && exec {sys.executable} -c "$0"'
    )
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, code]

    done = subprocess.run(argv, cwd=CODE, capture_output=True, text=True, timeout=LIMIT_S, check=True)

    assert done.stdout.startswith(f"words\nThe disk of {tmp_path} has ")


@needs_namespaces
def test_an_engine_on_a_full_disk_says_so_and_leaves_no_part(where: Folders, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    words = ["--model", "tiny-random-llama", "--set", "backend=torch", "--set", "device=cpu"]
    engines = {"LOOKAHEAD_ENGINES": str(small)}
    mount = f"mount -t tmpfs -o size=100k tmpfs {small} && export LOOKAHEAD_ENGINES={engines['LOOKAHEAD_ENGINES']}"

    done = run_with(mount, where, "engine", *words)

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert str(small) in done.stderr.replace("\n", "")


@needs_namespaces
@pytest.mark.triton
def test_a_killed_worker_comes_back_on_a_full_disk(served: PreparedServer, where: Folders, tmp_path: Path) -> None:
    script = f'mount -t tmpfs -o size=4m tmpfs {tmp_path} && exec "$@"'
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    environment = os.environ | {"LOOKAHEAD_ENGINES": str(where.engines), "LOOKAHEAD_CACHE": str(where.cache)}

    argv = [*words, sys.executable, "-m", "tests.soak.full_disk", str(tmp_path)]
    done = subprocess.run(argv, env=environment, cwd=CODE, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["200"]
