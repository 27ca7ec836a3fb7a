"""Checks of the machine before a build starts."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm import build
from pipeline.backends.tensorrt_llm.plan import plan_for
from pipeline.engine import memory
from pipeline.errors import BuildError
from tests.trt_configs import trt_config


@pytest.fixture
def ready(monkeypatch):
    """A machine on which TensorRT-LLM would run."""
    monkeypatch.setattr(build, "require_ready", lambda *arguments: None)
    monkeypatch.setattr(build, "require_space", lambda *arguments: None)


def test_too_little_host_memory_is_refused(ready, monkeypatch, tmp_path):
    needed = plan_for(trt_config()).estimate.host_bytes
    for available, refused in ((needed - 1, True), (needed, False)):
        monkeypatch.setattr(memory, "available_bytes", lambda available=available: available)
        if refused:
            with pytest.raises(BuildError, match=r"needs about .* GB of memory"):
                build.require_resources(trt_config(), tmp_path)
        else:
            build.require_resources(trt_config(), tmp_path)


def test_too_little_disk_is_refused(ready, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(build, "require_space", lambda folder, size, *rest: asked.append((folder, size)))
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 50)
    build.require_resources(trt_config(), tmp_path)
    assert asked == [(tmp_path, plan_for(trt_config()).estimate.disk_bytes)]


def test_a_machine_without_tensorrt_llm_and_gpu_is_refused_before_any_download(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError):
        build.require_resources(trt_config(), tmp_path)


@pytest.mark.parametrize(("speculation", "engines"), [("trie", 1), ("both", 2)])
def test_estimates_grow_with_the_engines(speculation, engines):
    one = plan_for(trt_config("llama2-13b", "latency", ".speculation=none")).estimate
    found = plan_for(trt_config("llama2-13b", "latency", f".speculation={speculation}")).estimate
    assert found.disk_bytes - one.disk_bytes == (engines - 1) * one.gpu.weight_bytes
    assert found.gpu.weight_bytes == engines * one.gpu.weight_bytes


def test_missing_calibration_texts_are_reported_before_the_stages(ready, tmp_path):
    asked = (".quantization=fp8", f".calib_dataset={tmp_path / 'texts'}")
    with pytest.raises(BuildError, match=r"tensorrt_llm\.calib_dataset: found '.*/texts'; there is no folder"):
        build.require_resources(trt_config("tiny-random-llama", "latency", *asked), tmp_path)
    (tmp_path / "texts").mkdir()
    build.require_resources(trt_config("tiny-random-llama", "latency", *asked), tmp_path)
