"""The choice of conversion for a checkpoint, and the exact call, against the known options of the scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.conversion import calibration_folder, conversion_of, method_of
from tests.trt_configs import RELEASE_FACTS, trt_context

SOURCE, OUTPUT, REQUEST = Path("/s"), Path("/o"), Path("/r.json")


def convert(*overrides: str):
    return conversion_of(trt_context(*overrides), SOURCE, OUTPUT, REQUEST)


def options(argv: tuple[str, ...]) -> dict[str, str | None]:
    """Options of a script's call with their values."""
    found: dict[str, str | None] = {}
    words = list(argv[2:])
    while words:
        name = words.pop(0).removeprefix("--")
        found[name] = words.pop(0) if words and not words[0].startswith("--") else None
    return found


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
        ("int8_wo", "fp8", "quantize.py"),
        ("fp8", "int8", "quantize.py"),
        ("none", "int8", "convert_checkpoint.py"),
        ("int4_wo", "int8", "convert_checkpoint.py"),
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
    call = convert(".speculation=none", *overrides).call
    assert call["quant_config"] == expected
    assert call["model_class"] == "LLaMAForCausalLM"
    assert call["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1, "cp_size": 1}
    assert ("calibration" in call) == (call["method"] == "quantize")


def test_experts_are_mapped():
    call = convert(
        "model.architecture=MixtralForCausalLM",
        "model.parallelism.tensor=4",
        ".moe_expert_parallel=2",
        ".speculation=none",
    ).call
    assert call["mapping"] == {
        "world_size": 4, "tp_size": 4, "pp_size": 1, "cp_size": 1, "moe_tp_size": -1, "moe_ep_size": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "script", "expected"),
    [
        (
            [
                ".kv_cache_dtype=int8",
                ".quantization=int4_wo",
                "model.parallelism.tensor=2",
                "model.parallelism.pipeline=2",
            ],
            "core/llama",
            {"tp_size": "2", "pp_size": "2", "workers": "4", "int8_kv_cache": None, "weight_only_precision": "int4"},
        ),
        (["model.architecture=Qwen2ForCausalLM", ".kv_cache_dtype=int8"], "core/qwen", {"int8_kv_cache": None}),
        (
            ["model.architecture=GemmaForCausalLM", ".kv_cache_dtype=int8", "model.parallelism.tensor=2"],
            "core/gemma",
            {"world-size": "2", "ckpt-type": "hf", "int8_kv_cache": None, "model-dir": "/s", "output-model-dir": "/o"},
        ),
        (
            ["model.architecture=RecurrentGemmaForCausalLM", "model.parallelism.tensor=2"],
            "core/recurrentgemma",
            {"world_size": "2", "ckpt_type": "hf", "model_dir": "/s", "output_dir": "/o"},
        ),
        (["model.architecture=GPTNeoXForCausalLM"], "contrib/gptneox", {"tp_size": "1", "model_dir": "/s"}),
    ],
)
def test_script_calls_use_options_that_the_script_has(overrides, script, expected):
    found = convert(".speculation=none", *overrides)
    assert found.method == "convert_checkpoint.py"
    assert found.argv[1] == f"/app/examples/models/{script}/convert_checkpoint.py"
    given = options(found.argv)
    assert expected.items() <= given.items()
    family = script.split("/")[1]
    known = release_data.release().convert_flags.get(family, {}) or {"model_dir", "output_dir", "dtype", "tp_size"}
    assert set(given) <= set(known)
    for name, value in given.items():
        choices = release_data.release().convert_flags.get(family, {}).get(name, {}).get("choices")
        assert not choices or value in choices


@pytest.mark.parametrize(
    ("architecture", "texts", "expected"),
    [
        ("LlamaForCausalLM", ".calib_size=64", {"calib_dataset": "/my/data", "calib_size": "64"}),
        ("LlamaForCausalLM", ".calib_size=512", {"calib_dataset": "/my/data", "calib_size": "512"}),
        ("Qwen2ForCausalLM", ".calib_size=512", {"calib_dataset": "/my/data"}),  # this script knows no size
        ("GemmaForCausalLM", ".calib_size=512", {"calib_dataset": "/my/data"}),
    ],
)
def test_an_int8_cache_is_calibrated_with_the_texts_that_were_asked_for(architecture, texts, expected):
    asked = [f"model.architecture={architecture}", ".kv_cache_dtype=int8", ".calib_dataset=/my/data", texts]
    given = options(convert(*asked).argv)
    assert {name: value for name, value in given.items() if name.startswith("calib")} == expected


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
    found = conversion_of(context, SOURCE, OUTPUT, REQUEST).call["calibration"]["calib_dataset"]
    assert found == (written if expected is None else str(expected))


@pytest.mark.parametrize("quantization", ["fp8", "int4_awq", "w4a8_awq"])
def test_the_quantization_script_gets_options_that_it_has(quantization):
    found = convert(f".quantization={quantization}", ".kv_cache_dtype=int8", ".speculation=none")
    given = options(found.argv)
    assert set(given) <= set(RELEASE_FACTS["quantize_flags"])
    for name, value in given.items():
        choices = RELEASE_FACTS["quantize_flags"][name].get("choices")
        assert not choices or value in choices, name
    assert (given["qformat"], given["kv_cache_dtype"]) == (quantization, "int8")
