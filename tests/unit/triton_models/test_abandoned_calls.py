"""A server whose Python backend has given up a model that runs ends; others do not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.triton_models import abandoned_calls
from pipeline.triton_models.abandoned_calls import end_server_after_abandoned_call
from pipeline.triton_models.handover import VARIABLE
from tests.patience import PATIENCE_S
from tests.processes import running
from tests.servers import wait_for

TEXT = "Failed to process the request(s) for model instance 'x', message: Stub process '%s_0_0' is not healthy."


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the child that runs the model `tensorrt_llm_engine`."""
    path = "/m/tensorrt_llm_engine/1/model.py"
    with running(["sh", "-c", f"sh -c 'read line; :' {path}; :"], stdin=subprocess.PIPE) as process:
        # Until its exec the child has the command line of its parent, where the path is no word of its own.
        wait_for(lambda: any(path in child.cmdline() for child in psutil.Process(process.pid).children()))
        monkeypatch.setattr(abandoned_calls, "server_process", lambda: (process.pid, []))
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        yield process


def test_a_server_that_has_given_up_a_model_that_runs_is_killed(
    server: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    end_server_after_abandoned_call(TEXT % "tensorrt_llm_engine")

    assert server.wait(PATIENCE_S) == -9
    assert "tensorrt_llm_engine, whose process runs" in capsys.readouterr().err


@pytest.mark.parametrize("text", [TEXT % "lookahead_bls", "Stub process is not healthy", "the prompt is too long"])
def test_other_errors_end_no_server(server: subprocess.Popen[bytes], text: str) -> None:
    end_server_after_abandoned_call(text)
    assert server.poll() is None


def test_a_model_that_has_died_is_left_to_the_guard(server: subprocess.Popen[bytes]) -> None:
    parent = psutil.Process(server.pid)
    (child,) = parent.children()
    parent.suspend()
    wait_for(lambda: parent.status() == psutil.STATUS_STOPPED)  # no earlier: until then it collects its child
    child.kill()
    wait_for(lambda: child.status() == psutil.STATUS_ZOMBIE)

    end_server_after_abandoned_call(TEXT % "tensorrt_llm_engine")
    assert server.poll() is None


def test_a_server_without_a_guard_is_left_alone(
    server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    end_server_after_abandoned_call(TEXT % "tensorrt_llm_engine")
    assert server.poll() is None
