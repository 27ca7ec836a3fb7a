"""Checks that the engine backend supports the model, and that its checkpoint can be converted with these settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.conversion import PLAIN_FORMATS, calibration_folder, method_of
from pipeline.backends.tensorrt_llm.rules.problem import Rule, setting, wrong
from pipeline.checkpoint.architectures import REFUSED, SUPPORTED_ARCHITECTURES
from pipeline.config.faults import Fault, did_you_mean, fault, one_of
from pipeline.config.schema import GgufCheckpoint, LocalCheckpoint, ModelShape

# Bound of model.parallelism.tensor.
_MOST_RANKS = 64
_ARCHITECTURE = "model.architecture"


def architecture_has_an_engine(context: BuildContext) -> Iterator[Fault]:
    name, known = context.model.architecture, release_data.release().model_map
    if name not in known:
        hint = "" if name in {*SUPPORTED_ARCHITECTURES, *REFUSED} else did_you_mean(name, known)
        text = f"found {name!r}; this pipeline makes no TensorRT-LLM engines of it.{hint}"
        yield fault(_ARCHITECTURE, text, "Use backend: torch, or another model.")


def shape_is_known(context: BuildContext) -> Iterator[Fault]:
    """The sizes are known before the download, for the checks of kernels, memory and ranks."""
    if context.shape is None and context.model.architecture in release_data.release().model_map:
        yield fault(
            "model.shape",
            "is missing; the engine is planned before the checkpoint is there.",
            "State the sizes of the checkpoint's config.json in the model's YAML, as configs/models/llama2-7b.yaml "
            "does.",
        )


def ranks_divide_the_model(context: BuildContext) -> Iterator[Fault]:
    """All tensor-parallel ranks get the same number of heads and of columns of the MLP. Experts are split over the
    tensor-parallel ranks. Calibration does not support expert parallelism."""
    ranks, shape, trt = context.model.parallelism, context.shape, context.trt
    if shape is not None and not _divides(context, shape, ranks.tensor):
        parts = [f"{shape.num_attention_heads} attention heads"]
        if shape.num_key_value_heads != shape.num_attention_heads:
            parts.append(f"{shape.num_key_value_heads} key/value heads")
        if "moe" not in context.traits:
            parts.append(f"intermediate_size {shape.intermediate_size}")
        fitting = [size for size in range(1, _MOST_RANKS + 1) if _divides(context, shape, size)]
        reason = f"it does not divide the {' and '.join(parts)} of {context.model.name}"
        yield wrong("model.parallelism.tensor", ranks.tensor, reason, f"Use {one_of(fitting)}.")
    if shape is not None and ranks.pipeline > shape.num_layers:
        reason = f"{context.model.name} has only {shape.num_layers} layers"
        yield wrong("model.parallelism.pipeline", ranks.pipeline, reason, "Use at most that many.")
    for name in ("moe_tensor_parallel", "moe_expert_parallel"):
        if (found := getattr(trt, name)) != -1 and "moe" not in context.traits:
            reason = f"{context.model.architecture} has no experts"
            yield wrong(setting(name), found, reason, "Leave it at -1.")
    asked = [size for size in (trt.moe_tensor_parallel, trt.moe_expert_parallel) if size != -1]
    product = asked[0] * asked[1] if len(asked) == 2 else None
    if 0 in asked or product not in (None, ranks.tensor) or any(size and ranks.tensor % size for size in asked):
        reason = f"its product with moe_tensor_parallel must be model.parallelism.tensor = {ranks.tensor}"
        yield wrong(setting("moe_expert_parallel"), trt.moe_expert_parallel, reason)
    if trt.moe_expert_parallel > 1 and method_of(context) == "quantize":
        reason = f"calibration for tensorrt_llm.quantization = '{trt.quantization}' takes no expert parallelism"
        yield wrong(setting("moe_expert_parallel"), trt.moe_expert_parallel, reason, "Set it to 1 or -1.")


def _divides(context: BuildContext, shape: ModelShape, ranks: int) -> bool:
    """Whether all ranks get the same number of heads and of columns of the MLP. A key/value head may be copied to
    several ranks."""
    columns = 0 if "moe" in context.traits else shape.intermediate_size
    kv_heads = shape.num_key_value_heads
    shares_heads = shape.num_attention_heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)
    return shares_heads and columns % ranks == 0


def converter_can_do_it(context: BuildContext) -> Iterator[Fault]:
    """The calibration supports the formats and has texts."""
    trt = context.trt
    if method_of(context) != "quantize":
        return
    if trt.quantization in PLAIN_FORMATS and trt.quantization != "none":
        reason = f"it is not calibrated beside tensorrt_llm.quantization = '{trt.quantization}'"
        yield wrong(setting("kv_cache_dtype"), trt.kv_cache_dtype, reason, "Use 'auto'.")
    texts = trt.calib_dataset
    if texts != "pileval" and "cnn_dailymail" not in texts and calibration_folder(context) is None:
        reason = f"TensorRT-LLM calibrates with 'cnn_dailymail', 'pileval' or a folder, as './{texts}'"
        yield wrong(
            setting("calib_dataset"), texts, reason, "Use one of these.", "tensorrt_llm.calib_dataset=cnn_dailymail"
        )


def path_does_not_mislead(context: BuildContext) -> Iterator[Fault]:
    """Words in the path of the checkpoint by which the Llama loader expects other weight names. Its copy is in a folder
    with the model's name."""
    paths, source = {"model.name": context.model.name}, context.model.checkpoint
    if isinstance(source, LocalCheckpoint | GgufCheckpoint):
        paths["model.checkpoint.path"] = str(Path(source.path))
    for key, text in paths.items():
        for word in release_data.misleading_words(context.model.architecture, text):
            reason = (
                f"with '{word}' in a path TensorRT-LLM's Llama loader assumes another model and loads wrong weights"
            )
            yield wrong(key, text, reason, "Rename it.")


RULES: tuple[Rule, ...] = (
    architecture_has_an_engine,
    shape_is_known,
    ranks_divide_the_model,
    converter_can_do_it,
    path_does_not_mislead,
)
