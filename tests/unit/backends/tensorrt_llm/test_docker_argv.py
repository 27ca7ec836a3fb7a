"""The docker command of a stage or a server."""

from __future__ import annotations

import getpass
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm import command
from pipeline.backends.tensorrt_llm.docker import docker_argv
from tests.own_folders import own_folders
from tests.trt_configs import trt_config


def test_a_user_whom_the_container_does_not_know_has_a_name_and_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    words = docker_argv(
        "image", ["call"], name="one", writable=[], readable=[], work_dir=Path("/"), environment={"EXTRA": "x"}
    )
    assert words[words.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    variables = dict(words[place + 1].split("=") for place, word in enumerate(words) if word == "--env")
    assert variables["HOME"] == "/tmp"
    assert variables["EXTRA"] == "x"

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])  # as for a number without an entry
    assert getpass.getuser() == variables["USER"]


def test_a_server_reads_the_engines_to_which_its_own_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = replace(own_folders(tmp_path), shared_engines=tmp_path / "shared")
    monkeypatch.setattr(command, "find_site", lambda: command.Site(None, has_mpirun=True))
    _, started = command.shown_commands(trt_config(), tmp_path / "engines" / "repository", where)
    words = started.argv
    assert f"{tmp_path}/engines:{tmp_path}/engines" in words
    assert f"{tmp_path}/shared:{tmp_path}/shared:ro" in words
