"""Hugging Face checkpoint -> TensorRT-LLM checkpoint, by the model class: the choice between two methods, and the call.

from_hugging_face     16-bit and weight-only formats, once per rank, then save_checkpoint
quantize              formats with calibration; writes all ranks at once
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import KV_QUANT_ALGOS, QUANT_ALGOS, BuildContext
from pipeline.config.places import expanded

Method = Literal["from_hugging_face", "quantize"]

# Weight formats that need no calibration.
PLAIN_FORMATS = ("none", "int8_wo", "int4_wo")


def method_of(context: BuildContext) -> Method:
    """The method for the formats of weights and KV cache. `quantize` runs the model on calibration texts to compute
    scales."""
    is_plain = context.trt.kv_cache_dtype == "auto" and context.trt.quantization in PLAIN_FORMATS
    return "from_hugging_face" if is_plain else "quantize"


def calibration_folder(context: BuildContext) -> Path | None:
    """Absolute path of the folder of calibration texts; None if they are a named data set or not needed. A value that
    looks like a path is one."""
    written = context.trt.calib_dataset
    path = expanded(written)
    is_folder = written.startswith(("/", ".", "~")) or path.is_dir()
    return path.resolve() if is_folder and method_of(context) == "quantize" else None


def calib_dataset_of(context: BuildContext) -> str:
    """Argument of the converters for the calibration texts."""
    return str(calibration_folder(context) or context.trt.calib_dataset)


def mapping_arguments(context: BuildContext) -> dict[str, int]:
    """Keyword arguments of Mapping, without the rank."""
    ranks, trt = context.model.parallelism, context.trt
    arguments = {"world_size": context.world_size, "tp_size": ranks.tensor, "pp_size": ranks.pipeline}
    if "moe" in context.traits:
        arguments |= {"moe_tp_size": trt.moe_tensor_parallel, "moe_ep_size": trt.moe_expert_parallel}
    return arguments


def quant_arguments(context: BuildContext) -> dict[str, str]:
    """Keyword arguments of QuantConfig, with enum members by name."""
    named = {
        "quant_algo": QUANT_ALGOS[context.trt.quantization],
        "kv_cache_quant_algo": KV_QUANT_ALGOS[context.trt.kv_cache_dtype],
    }
    return {name: value for name, value in named.items() if value is not None}


def call_of(context: BuildContext, source: Path, output: Path) -> dict[str, Any]:
    """Class and arguments for `conversion_script`. source: checkpoint folder with a normalized config.json. output:
    folder to write."""
    call: dict[str, Any] = {
        "method": method_of(context),
        "model_class": release_data.release().model_map[context.model.architecture],
        "hf_model_dir": str(source),
        "output_dir": str(output),
        "dtype": context.resolved.dtype,
        "mapping": mapping_arguments(context),
        "quant_config": quant_arguments(context),
    }
    if call["method"] == "quantize":
        call["calibration"] = {
            "device": "cuda",
            "calib_dataset": calib_dataset_of(context),
            "calib_batches": context.trt.calib_size,
            "calib_batch_size": 1,
            "calib_max_seq_length": 512,
            "random_seed": 1234,
            "tokenizer_max_seq_length": 2048,
        }
    return call
