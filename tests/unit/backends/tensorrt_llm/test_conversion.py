"""The choice of conversion for a checkpoint, and the exact call."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm.conversion import calibration_folder, call_of, method_of
from tests.trt_configs import trt_context

SOURCE, OUTPUT = Path("/s"), Path("/o")


def convert(*overrides: str):
    return call_of(trt_context(*overrides), SOURCE, OUTPUT)


@pytest.mark.parametrize(
    ("quantization", "kv", "method"),
    [
        ("none", "auto", "from_hugging_face"),
        ("int8_wo", "auto", "from_hugging_face"),
        ("int4_wo", "auto", "from_hugging_face"),
        ("fp8", "auto", "quantize"),
        ("int4_awq", "auto", "quantize"),
        ("w4a8_awq", "fp8", "quantize"),
        ("nvfp4", "fp8", "quantize"),
        ("none", "fp8", "quantize"),
    ],
)
def test_the_way_follows_weight_and_cache_format(quantization, kv, method):
    assert (
        method_of(trt_context(f".quantization={quantization}", f".kv_cache_dtype={kv}", ".speculation=none")) == method
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {}),
        ([".quantization=int8_wo"], {"quant_algo": "W8A16"}),
        ([".quantization=int4_wo"], {"quant_algo": "W4A16"}),
        ([".quantization=int4_awq"], {"quant_algo": "W4A16_AWQ"}),
        ([".quantization=w4a8_awq", ".kv_cache_dtype=fp8"], {"quant_algo": "W4A8_AWQ", "kv_cache_quant_algo": "FP8"}),
        ([".quantization=nvfp4"], {"quant_algo": "NVFP4"}),
        ([".kv_cache_dtype=fp8"], {"kv_cache_quant_algo": "FP8"}),
    ],
)
def test_formats_are_named_as_in_quant_config(overrides, expected):
    call = convert(".speculation=none", *overrides)
    assert call["quant_config"] == expected
    assert call["model_class"] == "LLaMAForCausalLM"
    assert call["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1}
    assert ("calibration" in call) == (call["method"] == "quantize")


def test_experts_are_mapped():
    call = convert(
        "model.architecture=MixtralForCausalLM",
        "model.parallelism.tensor=4",
        ".moe_expert_parallel=2",
        ".speculation=none",
    )
    assert call["mapping"] == {
        "world_size": 4, "tp_size": 4, "pp_size": 1, "moe_tp_size": -1, "moe_ep_size": 2,
    }  # fmt: skip


def test_a_plain_conversion_gets_no_calibration_texts():
    found = convert(".quantization=int8_wo", ".calib_dataset=/my/data", ".speculation=none")
    assert "/my/data" not in str(found)
    assert calibration_folder(trt_context(".calib_dataset=/my/data")) is None


@pytest.mark.parametrize(
    ("written", "folder"),
    [("cnn_dailymail", None), ("ccdv/cnn_dailymail", None), ("/my/data", "/my/data"), ("./texts", "texts")],
)
def test_calibration_texts_are_a_name_or_a_folder(written, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = trt_context(".quantization=fp8", f".calib_dataset={written}")
    expected = None if folder is None else tmp_path / folder  # an absolute folder stays as it is
    assert calibration_folder(context) == expected
    found = call_of(context, SOURCE, OUTPUT)["calibration"]["calib_dataset"]
    assert found == (written if expected is None else str(expected))
