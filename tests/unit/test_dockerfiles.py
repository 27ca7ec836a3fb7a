"""The container files in deploy/: what an image holds, its user, its folders and its command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_images_hold_what_the_package_is_built_from_and_nothing_else():
    lines = (DEPLOY.parent / ".dockerignore").read_text().splitlines()

    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    assert all((DEPLOY.parent / name).exists() for name in kept)
    assert {"pipeline", "configs", "triton_repo", "docker", "pyproject.toml", "constraints.txt"} <= kept
    assert not {"engines", ".git", ".venv"} & kept


def test_folders_of_the_container_belong_to_its_user():
    for name in ("cpu", "gpu"):
        text = (DEPLOY / f"{name}.Dockerfile").read_text()
        variables = dict(re.findall(r"([A-Z_]+)=(/data\S*)", text))
        (owned,) = re.findall(r"install --directory --owner lookahead (.*)", text)
        assert {"/data", *variables.values()} == set(owned.split())
        assert "HOME" in variables


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_commands_in_a_container_start_in_the_volume_and_not_beside_the_sources(name):
    """`python -m` imports from its working folder first."""
    lines = (DEPLOY / f"{name}.Dockerfile").read_text().splitlines()

    (sources,) = (line.split()[-1] for line in lines if line.startswith("COPY"))
    workdirs = [line.split()[1] for line in lines if line.startswith("WORKDIR")]
    assert workdirs == [sources, "/data"]
    assert "VOLUME /data" in lines


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_command_of_a_container_has_all_its_packages(name):
    text = (DEPLOY / f"{name}.Dockerfile").read_text()
    (program,) = json.loads(re.findall("^ENTRYPOINT (.*)$", text, re.M)[0])
    environment = program.removesuffix("/bin/lookahead")
    pip = "pip" if environment == "lookahead" else f"pip --python {environment}/bin/python"

    install = text[text.index(f"{pip} install") :].partition("&&")[0]
    assert "'.[dynamo]'" in install
    assert "--constraint constraints.txt" in install
    assert "--no-deps" not in install


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_containers_run_as_a_user_of_their_own(name):
    lines = (DEPLOY / f"{name}.Dockerfile").read_text().splitlines()

    assert "USER 10001" in lines
    assert lines.index("USER 10001") < next(place for place, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((DEPLOY.parent / word).exists() for word in copied)
