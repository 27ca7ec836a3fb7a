"""Hugging Face checkpoint -> TensorRT-LLM checkpoint: the choice between four methods, and the exact command.

from_hugging_face     16-bit and weight-only formats, once per rank, then save_checkpoint
quantize              formats with calibration, through the model class; writes all ranks at once
convert_checkpoint.py families whose class has no from_hugging_face, and INT8 KV caches
quantize.py           the remaining pairs of weight and KV format
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.config.folders import expanded

Method = Literal["from_hugging_face", "quantize", "convert_checkpoint.py", "quantize.py"]

# Folder of the examples in the containers.
EXAMPLES_ROOT = "/app"
# Formats that need no calibration.
PLAIN = ("none", "int8_wo", "int4_wo")
_WEIGHT_ONLY_PRECISION = {"int8_wo": "int8", "int4_wo": "int4"}
# Options that every family's script has. Used for scripts without a complete list.
_COMMON_FLAGS = ("model_dir", "output_dir", "dtype", "tp_size")


class Conversion(NamedTuple):
    """A conversion. call: class and arguments for `conversion_script`; empty for methods that run a script of
    TensorRT-LLM. argv: command to run."""

    method: Method
    call: dict[str, Any]
    argv: tuple[str, ...]


def method_of(context: BuildContext) -> Method:
    """The method for the weight format, KV cache format and model class."""
    trt = context.trt
    if "script_only" in context.traits:
        return "convert_checkpoint.py"
    if trt.kv_cache_dtype == "int8":
        return "convert_checkpoint.py" if trt.quantization in PLAIN else "quantize.py"
    if trt.kv_cache_dtype == "fp8":
        return "quantize.py" if trt.quantization in _WEIGHT_ONLY_PRECISION else "quantize"
    return "from_hugging_face" if trt.quantization in PLAIN else "quantize"


def known_script_flags(family: str) -> frozenset[str]:
    """Known options of a family's script."""
    return frozenset(release_data.release().convert_flags.get(family, {})) or frozenset(_COMMON_FLAGS)


def options_of_script(context: BuildContext) -> dict[str, str | None]:
    """Option of a family's script that another value than the default needs, by setting of `tensorrt_llm`; None if no
    script supports such a value."""
    trt = context.trt
    options = {
        "quantization": "use_weight_only" if trt.quantization in PLAIN else None,
        "kv_cache_dtype": f"{trt.kv_cache_dtype}_kv_cache",
        "context_parallel": "cp_size",
    }
    if "moe" in context.traits:
        options |= {"moe_tensor_parallel": "moe_tp_size", "moe_expert_parallel": "moe_ep_size"}
    return options | ({"calib_size": "calib_size"} if is_calibrated(context) else {})


def is_calibrated(context: BuildContext) -> bool:
    """Whether the conversion runs the model on calibration texts to compute scales."""
    return method_of(context) in ("quantize", "quantize.py") or context.trt.kv_cache_dtype == "int8"


def calibration_folder(context: BuildContext) -> Path | None:
    """Absolute path of the folder of calibration texts; None if they are a named data set or not needed. A value that
    looks like a path is one."""
    written = context.trt.calib_dataset
    path = expanded(written)
    is_folder = written.startswith(("/", ".", "~")) or path.is_dir()
    return path.resolve() if is_folder and is_calibrated(context) else None


def calib_dataset_of(context: BuildContext) -> str:
    """Argument of the converters for the calibration texts."""
    return str(calibration_folder(context) or context.trt.calib_dataset)


def mapping_arguments(context: BuildContext) -> dict[str, int]:
    """Keyword arguments of Mapping, without the rank."""
    ranks, trt = context.model.parallelism, context.trt
    arguments = {
        "world_size": context.world_size,
        "tp_size": ranks.tensor,
        "pp_size": ranks.pipeline,
        "cp_size": trt.context_parallel,
    }
    if "moe" in context.traits:
        arguments |= {"moe_tp_size": trt.moe_tensor_parallel, "moe_ep_size": trt.moe_expert_parallel}
    return arguments


def conversion_of(context: BuildContext, source: Path, output: Path, request: Path) -> Conversion:
    """Make the conversion of a config. source: checkpoint folder with a normalized config.json. output: folder to
    write. request: file for `Conversion.call` in JSON."""
    method = method_of(context)
    if method == "convert_checkpoint.py":
        return Conversion(method, {}, _convert_argv(context, source, output))
    if method == "quantize.py":
        return Conversion(method, {}, _quantize_argv(context, source, output))
    call: dict[str, Any] = {
        "method": method,
        "architecture": context.model.architecture,
        "model_class": release_data.release().model_map.get(context.model.architecture),
        "hf_model_dir": str(source),
        "output_dir": str(output),
        "dtype": context.resolved.dtype,
        "mapping": mapping_arguments(context),
        # Keyword arguments of QuantConfig, with enum members by name.
        "quant_config": {name: algo for name, algo in context.quant_algos.items() if algo is not None},
    }
    if method == "quantize":
        call["calibration"] = {
            "device": "cuda",
            "calib_dataset": calib_dataset_of(context),
            "calib_batches": context.trt.calib_size,
            "calib_batch_size": 1,
            "calib_max_seq_length": 512,
            "random_seed": 1234,
            "tokenizer_max_seq_length": 2048,
        }
    return Conversion(method, call, ("python3", "-m", "pipeline.backends.tensorrt_llm.conversion_script", str(request)))


def _convert_argv(context: BuildContext, source: Path, output: Path) -> tuple[str, ...]:
    release = release_data.release()
    folder = release.families[release.model_map[context.model.architecture]]
    family = folder.rpartition("/")[2]
    script = f"{EXAMPLES_ROOT}/examples/models/{folder}/convert_checkpoint.py"
    known, ranks, trt = known_script_flags(family), context.model.parallelism, context.trt
    values: dict[str, object] = {
        "model_dir": source,
        "output_dir": output,
        "dtype": context.resolved.dtype,
        "tp_size": ranks.tensor,
    }
    sizes = {name: size for name, size in mapping_arguments(context).items() if name not in ("world_size", "tp_size")}
    values |= {name: size for name, size in sizes.items() if size > 1 or (size == 1 and name.startswith("moe"))}
    if (kind := release.script_kind_options.get(family)) is not None:
        values[kind] = "hf"  # the script reads several kinds of checkpoint
    if "workers" in known:
        values["workers"] = context.world_size
    spelling = release.script_spellings.get(family, {})
    options = [word for name, value in values.items() for word in (f"--{spelling.get(name, name)}", str(value))]
    if trt.quantization in _WEIGHT_ONLY_PRECISION:
        options += ["--use_weight_only", "--weight_only_precision", _WEIGHT_ONLY_PRECISION[trt.quantization]]
    if trt.kv_cache_dtype != "auto":
        options.append(f"--{trt.kv_cache_dtype}_kv_cache")
    if is_calibrated(context):
        options += ["--calib_dataset", calib_dataset_of(context)]
        if "calib_size" in known:
            options += ["--calib_size", str(trt.calib_size)]
    return ("python3", script, *options)


def _quantize_argv(context: BuildContext, source: Path, output: Path) -> tuple[str, ...]:
    trt, mapping = context.trt, mapping_arguments(context)
    options: dict[str, object] = {
        "model_dir": source,
        "output_dir": output,
        "dtype": context.resolved.dtype,
        "qformat": "full_prec" if trt.quantization == "none" else trt.quantization,
        "kv_cache_dtype": trt.kv_cache_dtype,
        "calib_dataset": calib_dataset_of(context),
        "calib_size": trt.calib_size,
        "calib_max_seq_length": 512,
        "batch_size": 1,
        **{name: mapping[name] for name in ("tp_size", "pp_size", "cp_size")},
        "device": "cuda",
        "seed": 1234,
    }
    script = f"{EXAMPLES_ROOT}/examples/quantization/quantize.py"
    return ("python3", script, *(text for name, value in options.items() for text in (f"--{name}", str(value))))
