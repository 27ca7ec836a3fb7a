"""Commands that are killed at random moments leave whole files or none, and the next call does the work. Neither
processes nor shared memory nor unfinished files stay behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipeline.config.folders import CODE, Folders
from pipeline.decoding.trie import Trie
from pipeline.decoding.trie.snapshot import load_trie, save_trie
from pipeline.engine.artifact import artifact_dir, load_artifact
from pipeline.server.processes import MARK
from pipeline.server.server import stop_server
from tests.own_folders import own_folders
from tests.servers import FREE_PORTS, left_over, wait_for
from tests.soak.conftest import IS_LONG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
MODEL = ("--model", "tiny-random-llama", "--set", "backend=torch", "--set", "device=cpu")


def command(where: Folders, *words: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"LOOKAHEAD_ENGINES": str(where.engines), "LOOKAHEAD_CACHE": str(where.cache)}
    argv = [sys.executable, "-m", "pipeline", *words]
    return subprocess.Popen(argv, env=environment, cwd=CODE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run_and_kill(where: Folders, after_s: float, *words: str) -> None:
    process = command(where, *words)
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    assert b"Traceback" not in process.stdout.read()


def finish(where: Folders, *words: str) -> bytes:
    process = command(where, *words)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out.decode()
    return out


def processes_in(where: Folders) -> dict[psutil.Process, str]:
    """Processes that commands with these folders have started, with the ids of their servers."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # not ours to look at, or gone
            environment = process.environ()
            if environment.get("LOOKAHEAD_ENGINES") == str(where.engines):
                found[process] = environment.get(MARK, "")
    return found


def expect_nothing_runs(where: Folders, server_ids: set[str]) -> None:
    wait_for(lambda: not processes_in(where) and not any(left_over(server) for server in server_ids - {""}))


def unfinished(where: Folders) -> list[Path]:
    """Files and folders that nobody will rename any more."""
    folders, names = (where.engines, where.cache), ("*.partial", ".partial-*")
    return [path for folder in folders for name in names for path in folder.rglob(name)]


@pytest.mark.parametrize("number", range(20 if IS_LONG else 1))
def test_builds_killed_at_any_moment_are_done_by_the_next_call(
    tmp_path: Path, chance: random.Random, number: int
) -> None:
    where = own_folders(tmp_path)
    for _ in range(3 if IS_LONG else 1):
        run_and_kill(where, chance.uniform(0.5, 15.0 if IS_LONG else 8.0), "engine", *MODEL)

    finish(where, "engine", *MODEL)

    artifact = load_artifact(artifact_dir(where, "tiny-random-llama", "latency"), where.cache)
    assert artifact.engine_dir.is_dir()
    expect_nothing_runs(where, set())
    assert not unfinished(where)


@pytest.mark.triton
@pytest.mark.parametrize("number", range(20 if IS_LONG else 1))
def test_starts_and_switches_killed_at_any_moment_leave_nothing_running(
    where: Folders, chance: random.Random, number: int
) -> None:
    serve = ["serve", "--background", *MODEL, *(word for setting in FREE_PORTS for word in ("--set", setting))]
    if IS_LONG:
        serve += ["--set", "server.openai=true"]
    try:
        run_and_kill(where, chance.uniform(1.0, 20.0 if IS_LONG else 12.0), *serve)
        server_ids = {*processes_in(where).values()}
        finish(where, "stop")
        expect_nothing_runs(where, server_ids)
        if IS_LONG:
            finish(where, *serve)
            assert not unfinished(where)
            run_and_kill(where, chance.uniform(1.0, 20.0), "switch", "--profile", "throughput")
            server_ids = {*processes_in(where).values()}
            finish(where, "stop")
            expect_nothing_runs(where, server_ids)
    finally:
        stop_server(where.engines / ".run")


@pytest.mark.parametrize("number", range(50 if IS_LONG else 5))
def test_snapshots_killed_at_any_moment_are_the_old_one_or_the_new_one(
    tmp_path: Path, chance: random.Random, number: int
) -> None:
    path = tmp_path / "snapshot"
    sizes = []
    for seed in (1, 2):
        trie = Trie(8, 1 << 22)
        trie.insert(np.random.default_rng(seed).integers(0, 99, 20_000 * seed).astype(np.int32))
        sizes.append(trie.statistics.num_tokens)
        if seed == 1:
            save_trie(trie, path)
    if (child := os.fork()) == 0:
        try:
            while True:
                save_trie(trie, path)
        finally:
            os._exit(0)
    time.sleep(chance.uniform(0.0, 0.3))
    os.kill(child, 9)
    os.waitpid(child, 0)

    found = load_trie(path)
    assert found.statistics.num_tokens in sizes
    save_trie(found, path)
    assert list(tmp_path.iterdir()) == [path]
