"""Choice of the tritonserver, and refused ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.folders import folders
from pipeline.errors import ServerError
from pipeline.server.installation import (
    VARIABLE,
    Installation,
    check_paths,
    find_installation,
    server_environment,
)


@pytest.mark.parametrize(("folder", "remedy"), [("home", "Move the project"), ("engines", "Set LOOKAHEAD_ENGINES")])
def test_folders_that_the_backend_cannot_open_are_refused(folder, remedy):
    with pytest.raises(ServerError, match=rf"/srv/modèles has characters outside of ASCII; .*{remedy}"):
        check_paths(replace(folders(), **{folder: Path("/srv/modèles")}))


def test_a_variable_that_names_no_server_is_refused(tmp_path):
    with pytest.raises(ServerError, match=f"{VARIABLE} is .*not an executable"):
        find_installation({VARIABLE: str(tmp_path / "nothing")})


def test_the_variable_wins_over_the_container_and_that_over_the_path(tmp_path):
    servers = {name: tmp_path / name / "tritonserver" for name in ("variable", "container", "path")}
    for path in servers.values():
        path.parent.mkdir()
        path.touch(mode=0o755)
    environment = {"PATH": str(servers["path"].parent), VARIABLE: str(servers["variable"])}

    assert find_installation(environment, servers["container"]).executable == servers["variable"]
    del environment[VARIABLE]
    assert find_installation(environment, servers["container"]).executable == servers["container"]
    assert find_installation(environment, tmp_path / "none").executable == servers["path"]


@pytest.mark.parametrize(("replicas", "num_threads"), [(1, 6), (2, 3), (9, 1)])
def test_a_served_engine_computes_on_all_cores_which_replicas_share(replicas, num_threads, monkeypatch):
    monkeypatch.setattr("pipeline.config.threads.available_cores", lambda: 6)
    installation = Installation(Path("/opt/tritonserver"), "container")
    found = server_environment(folders(), installation, {}, replicas=replicas)
    assert found["OMP_NUM_THREADS"] == str(num_threads)
    asked = server_environment(folders(), installation, {"OMP_NUM_THREADS": "2"}, replicas=replicas)
    assert asked["OMP_NUM_THREADS"] == "2"
