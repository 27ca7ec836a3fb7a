"""Detection of GPU, packages and docker, and refusals before a build starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm import environment
from pipeline.backends.tensorrt_llm.environment import (
    Environment,
    Gpu,
    detect,
    engine_version,
    parse_gpus,
    require_ready,
)
from pipeline.errors import BuildError
from tests.trt_configs import trt_config

H100 = Gpu("NVIDIA H100 80GB HBM3", 90, 81559, "580.95.05")
READY = Environment("1.2.1", None, (H100,))


def test_lines_of_nvidia_smi_are_read():
    text = "NVIDIA H100 80GB HBM3, 9.0, 81559, 580.95.05\nNVIDIA RTX 6000 Ada Generation, 8.9, 49140, 580.95.05\n\n"
    assert parse_gpus(text) == (H100, Gpu("NVIDIA RTX 6000 Ada Generation", 89, 49140, "580.95.05"))
    assert parse_gpus("No devices were found\n") == ()
    assert parse_gpus("NVIDIA GB200, 10.0, [N/A], 580\n") == ()


def test_a_machine_without_anything(tmp_path):
    found = detect({"PATH": str(tmp_path)})
    assert (found.docker, found.gpus) == (None, ())


def test_nvidia_smi_is_asked_and_its_failure_is_no_gpu(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771, 570.1'\n")
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert environment.gpus(path) == (Gpu("NVIDIA H200", 90, 143771, "570.1"),)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert environment.gpus(path) == ()


@pytest.mark.parametrize(("script", "answers"), [("echo 27.1", True), ("echo denied >&2; exit 1", False)])
def test_a_fitting_machine_is_ready(tmp_path, script, answers):
    require_ready(READY, trt_config(), 1)
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    found = Environment(None, str(docker), (H100,))
    if answers:
        require_ready(found, trt_config(), 1)
    else:  # it would fail after the download of the checkpoint
        with pytest.raises(BuildError, match="docker is here, and its daemon does not answer"):
            require_ready(found, trt_config(), 1)


@pytest.mark.parametrize(
    ("found", "ranks", "text"),
    [
        (Environment(None, None, (H100,)), 1, "26.07-trtllm-python-py3"),
        (Environment("1.3.0", None, (H100,)), 1, "TensorRT-LLM 1.3.0 is installed"),
        (Environment("1.20.0", None, (H100,)), 1, "release line 1.2"),
        (Environment("1.2.1", None, ()), 1, "trtllm-build fails"),
        (READY, 2, "nvidia-smi shows 1"),
        (Environment("1.2.1", None, (Gpu("NVIDIA L4", 89, 23034, "580"),)), 1, "compute_capability=89"),
    ],
)
def test_a_machine_that_would_fail_is_refused_with_the_remedy(found, ranks, text):
    with pytest.raises(BuildError, match=text):
        require_ready(found, trt_config(), ranks)


def test_the_version_is_the_containers_where_none_is_installed(monkeypatch):
    monkeypatch.setattr(environment, "version_of", lambda name: None)
    assert engine_version(trt_config()) == "1.2.1"
    assert engine_version(trt_config("llama2-13b", "latency", ".container_tag='26.03'")) == "1.2.0rc8"
    monkeypatch.setattr(environment, "version_of", lambda name: "1.2.5")
    assert engine_version(trt_config()) == "1.2.5"
    assert detect().where == "here"


def test_docker_takes_over_where_tensorrt_llm_is_missing():
    assert Environment(None, "/usr/bin/docker", ()).where == "docker"
    assert Environment(None, None, ()).where == "nowhere"
    assert Path(READY.version or "").name == "1.2.1"
