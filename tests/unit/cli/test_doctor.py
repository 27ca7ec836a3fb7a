"""Reports of doctor on a machine, with small scripts for missing programs, and on a config."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm import environment
from pipeline.backends.tensorrt_llm.doctor import examine_tensorrt_llm
from pipeline.engine.backend import Finding
from pipeline.server.installation import VARIABLE
from tests.command_line import exit_code
from tests.unit.server.fake_machine import fake_machine, write_program

# The default ports may be in use.
FREE_PORTS = [part for name in ("http", "grpc", "metrics") for part in ("--set", f"server.{name}_port=0")]


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    code = exit_code("doctor", "--json", *arguments)
    found = json.loads(capsys.readouterr().out)
    return code, {entry["part"]: entry for entry in found}


def parts_of_backend() -> dict[str, Finding]:
    return {finding.part: finding for finding in examine_tensorrt_llm()}


def put_tensorrt_llm(programs: Path, **versions: str) -> None:
    """A python3 that knows packages, and the command that tells that TensorRT-LLM is there."""
    write_program(programs / "trtllm-build", "")
    write_program(programs / "python3", f"print({json.dumps(versions)!r})")
    environment._versions_in.cache_clear()


@pytest.fixture
def gpu_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs, server = fake_machine(tmp_path)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv(VARIABLE, str(server))
    monkeypatch.setenv("LOOKAHEAD_ENGINES", str(tmp_path / "engines"))
    return programs


def test_a_damaged_package_of_the_container_hides_no_other_one(gpu_machine, tmp_path, monkeypatch):
    """What a failed uninstall leaves has no name, and all packages counted as not installed."""
    for name, metadata in (("left_over", ""), ("tensorrt_llm", "Name: tensorrt-llm\nVersion: 1.2.1\n")):
        (tmp_path / "packages" / f"{name}-1.2.1.dist-info").mkdir(parents=True)
        (tmp_path / "packages" / f"{name}-1.2.1.dist-info" / "METADATA").write_text(metadata)
    write_program(gpu_machine / "trtllm-build", "")
    (gpu_machine / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    environment._versions_in.cache_clear()

    assert parts_of_backend()["TensorRT-LLM"].found == "1.2.1"


def test_a_complete_container_has_no_remark(gpu_machine):
    put_tensorrt_llm(gpu_machine, tensorrt_llm="1.2.1", tensorrt="10.14.1.48", torch="2.10.0a0+b4e4ee81d3.nv25.12")
    write_program(gpu_machine / "mpirun", "print('mpirun (Open MPI) 4.1.7')")
    found = parts_of_backend()

    assert found.pop("docker").state == "note"
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["TensorRT-LLM"].found == "1.2.1"
    assert found["TensorRT"].found == "10.14.1.48"
    assert found["CUDA driver"].found == "580.95.05"
    assert found["NVIDIA GPUs"].found.count("H100") == 2
    assert found["mpirun"].found.endswith("mpirun (Open MPI) 4.1.7")


def test_other_versions_are_named_with_the_range_that_is_needed(gpu_machine):
    put_tensorrt_llm(gpu_machine, tensorrt_llm="1.3.0", tensorrt="10.9.0.34", torch="2.10.0", transformers="5.1")
    write_program(gpu_machine / "nvidia-smi", "print('NVIDIA V100, 7.0, 16384, 535.1')")
    found = parts_of_backend()

    assert found["torch"].state == "ok"
    for part in ("TensorRT-LLM", "TensorRT", "transformers (beside TensorRT-LLM)", "CUDA driver", "NVIDIA GPUs"):
        assert found[part].state == "note", part
        assert found[part].remedy, part
    assert ">=1.2,<1.3" in found["TensorRT-LLM"].remedy
    assert "8.0" in found["NVIDIA GPUs"].remedy


def test_a_bare_machine_lacks_it_all_and_nothing_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = parts_of_backend()
    assert {finding.state for finding in found.values()} == {"note"}
    assert "not installed" in found["TensorRT-LLM"].found
    assert set(found) == {"TensorRT-LLM", "CUDA driver", "NVIDIA GPUs", "mpirun", "docker"}


def test_a_c_compiler_is_needed_on_a_gpu_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    found = doctor(capsys)[1]["C compiler"]
    assert (found["state"], found["found"]) == ("note", "none")
    assert found["remedy"] == "For the torch engine on a GPU, install gcc or clang."


def test_docker_without_its_daemon_is_a_different_finding(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    write_program(tmp_path / "docker", "raise SystemExit('no daemon')")
    assert "does not answer" in parts_of_backend()["docker"].found
    write_program(tmp_path / "docker", "print('28.1')")
    assert parts_of_backend()["docker"].state == "ok"


def test_the_backends_of_the_server_are_listed(gpu_machine, capsys):
    _, found = doctor(capsys)
    assert found["Triton backends"]["found"] == "tensorrtllm"


def test_all_wrong_settings_of_a_config_are_reported(capsys):
    wrong = ("kv_cache_dtype=int8", "speculation=trie", "quantization=nvfp4")
    arguments = [part for text in wrong for part in ("--set", f"tensorrt_llm.{text}")]
    code, found = doctor(capsys, "-m", "llama2-13b", "--set", "backend=tensorrt_llm", *arguments)

    assert code == 2
    assert "paged context attention" in found["tensorrt_llm.speculation"]["found"]
    assert "FP4" in found["tensorrt_llm.quantization"]["found"]
    assert "build here" not in found


def test_what_this_machine_lacks_for_a_config_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, found = doctor(capsys, "-m", "llama2-13b", "--set", "backend=tensorrt_llm", *FREE_PORTS)

    assert code == 2
    assert found["llama2-13b (latency)"]["state"] == "ok"
    assert "docker was not found" in found["build here"]["remedy"]
    assert "docker was not found" in found["serve here"]["remedy"]


def test_a_config_that_this_machine_can_build_and_serve(capsys):
    _, found = doctor(capsys, "-m", "tiny-random-llama", "--set", "backend=torch", "--set", "device=cpu", *FREE_PORTS)
    parts = ("tiny-random-llama (latency)", "build here", "serve here")
    assert [found[part]["state"] for part in parts] == ["ok"] * 3


def test_an_unknown_model_is_a_finding_like_others(capsys):
    code, found = doctor(capsys, "-m", "smolm2-135m")
    assert code == 2
    assert "Did you mean" in found["smolm2-135m (latency)"]["found"]
