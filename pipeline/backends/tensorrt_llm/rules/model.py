"""Checks that the engine backend supports the model, and that its checkpoint can be converted with these settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.conversion import (
    calibration_folder,
    known_script_flags,
    method_of,
    options_of_script,
)
from pipeline.backends.tensorrt_llm.rules.faults import wrong
from pipeline.config.faults import Fault, did_you_mean, fault, one_of
from pipeline.config.schema import GgufCheckpoint, LocalCheckpoint, ModelShape, TensorRTLLMConfig

# Bound of model.parallelism.tensor.
_MOST_RANKS = 64
_ARCHITECTURE = "model.architecture"
# Classes whose attention layers support context parallelism; others would give wrong results.
_CONTEXT_PARALLEL = ("LLaMAForCausalLM", "QWenForCausalLM", "ChatGLMForCausalLM")


def architecture_has_an_engine(context: BuildContext) -> Iterator[Fault]:
    """The release has engines for the architecture, a text model without a speculative mode of its own."""
    name, known = context.model.architecture, release_data.release().model_map
    if name not in known:
        text = f"found {name!r}; this pipeline builds no engine of TensorRT-LLM {release_data.RELEASE_LINE} for it."
        yield fault(_ARCHITECTURE, f"{text}{did_you_mean(name, known)}", "Use backend: torch, or another model.")


def shape_is_known(context: BuildContext) -> Iterator[Fault]:
    """The sizes are known before the download, for the checks of kernels, memory and ranks."""
    if context.shape is None and release_data.release().model_map.get(context.model.architecture) is not None:
        positions = ", with position_embedding, as some have ALiBi" if "maybe_alibi" in context.traits else ""
        yield fault(
            "model.shape",
            "is missing; the engine is planned before the checkpoint is there.",
            "State the sizes of the checkpoint's config.json in the model's YAML, as configs/models/llama2-7b.yaml "
            f"does{positions}.",
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
            yield wrong(f"tensorrt_llm.{name}", found, reason, "Leave it at -1.")
    asked = [size for size in (trt.moe_tensor_parallel, trt.moe_expert_parallel) if size != -1]
    product = asked[0] * asked[1] if len(asked) == 2 else None
    if 0 in asked or product not in (None, ranks.tensor) or any(size and ranks.tensor % size for size in asked):
        reason = f"its product with moe_tensor_parallel must be model.parallelism.tensor = {ranks.tensor}"
        yield wrong("tensorrt_llm.moe_expert_parallel", trt.moe_expert_parallel, reason)
    if trt.moe_expert_parallel > 1 and trt.context_parallel > 1:
        reason = f"TensorRT-LLM takes it only without tensorrt_llm.context_parallel (found {trt.context_parallel})"
        yield wrong("tensorrt_llm.moe_expert_parallel", trt.moe_expert_parallel, reason, "Change one of the two.")
    if trt.moe_expert_parallel > 1 and method_of(context) in ("quantize", "quantize.py"):
        reason = f"calibration for tensorrt_llm.quantization = '{trt.quantization}' takes no expert parallelism"
        yield wrong("tensorrt_llm.moe_expert_parallel", trt.moe_expert_parallel, reason, "Set it to 1 or -1.")


def contexts_are_split_evenly(context: BuildContext) -> Iterator[Fault]:
    """Context-parallel ranks exchange tokens for heads, so together with the tensor-parallel ranks they divide the
    attention heads. The builder checks neither this nor the architecture."""
    ranks, tensor, shape = context.trt.context_parallel, context.model.parallelism.tensor, context.shape
    model_class, key = release_data.release().model_map.get(context.model.architecture), "tensorrt_llm.context_parallel"
    if ranks == 1 or model_class is None:
        return
    if model_class not in _CONTEXT_PARALLEL:
        yield wrong(key, ranks, f"{context.model.architecture} has no context parallelism", "Use 1.")
    elif shape is not None and not _divides_heads(shape, tensor * ranks):
        reason = f"times model.parallelism.tensor = {tensor} it does not divide the {shape.num_attention_heads} heads"
        yield wrong(key, ranks, reason, "Lower one of the two.")


def _divides(context: BuildContext, shape: ModelShape, ranks: int) -> bool:
    """Whether all ranks get the same number of heads and of columns of the MLP. A key/value head may be copied to
    several ranks."""
    columns = 0 if "moe" in context.traits else shape.intermediate_size
    return _divides_heads(shape, ranks) and columns % ranks == 0


def _divides_heads(shape: ModelShape, ranks: int) -> bool:
    kv_heads = shape.num_key_value_heads
    return shape.num_attention_heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def converter_can_do_it(context: BuildContext) -> Iterator[Fault]:
    """The converter supports the settings. A conversion script is limited to its options. For some families the
    transformers of TensorRT-LLM 1.2 has no class, so the converter runs the checkpoint's code."""
    name = context.model.architecture
    if "remote_code" in context.traits and not context.model.trust_remote_code:
        yield wrong(
            "model.trust_remote_code",
            False,
            f"checkpoints of {name} bring Python code that the conversion has to run",
            "Read it, pin its revision and set this to true (the tokenizer must work without code), or use a model "
            "that brings none.",
        )
    model_class = release_data.release().model_map.get(name)
    formats = (
        ("quantization", context.trt.quantization, "none"),
        ("kv_cache_dtype", context.trt.kv_cache_dtype, "auto"),
    )
    for key, found, plain in formats:
        if model_class == "GrokForCausalLM" and found != plain:
            yield wrong(
                f"tensorrt_llm.{key}",
                found,
                f"the converter of {name} does not support quantization",
                f"Use {plain!r}.",
            )
    method, texts = method_of(context), context.trt.calib_dataset
    is_known = texts == "pileval" or "cnn_dailymail" in texts or calibration_folder(context) is not None
    if method in ("quantize", "quantize.py") and not is_known:
        reason = f"TensorRT-LLM calibrates {name} with 'cnn_dailymail', 'pileval' or a folder, as './{texts}'"
        yield wrong(
            "tensorrt_llm.calib_dataset", texts, reason, "Use one of these.", "tensorrt_llm.calib_dataset=cnn_dailymail"
        )
    if method != "convert_checkpoint.py" or model_class is None:
        return
    family = release_data.release().family(name)
    if family is None:
        yield wrong(_ARCHITECTURE, name, "neither class nor script converts it", "Use another.")
        return
    if context.trt.kv_cache_dtype == "int8" and context.trt.context_parallel > 1:
        reason = "the conversion scripts calibrate without context parallelism only"
        yield wrong("tensorrt_llm.context_parallel", context.trt.context_parallel, reason, "Use 1.")
    known, defaults = known_script_flags(family), TensorRTLLMConfig()
    script = f"{name} is converted by the script of '{family}', which"
    for key, option in options_of_script(context).items():
        found, plain = getattr(context.trt, key), getattr(defaults, key)
        if found != plain and option not in known:
            lack = "cannot calibrate weights" if option is None else f"has no option --{option}"
            yield wrong(f"tensorrt_llm.{key}", found, f"{script} {lack}", f"Use {plain!r}.")
    if (ranks := context.model.parallelism.pipeline) > 1 and "pp_size" not in known:
        yield wrong("model.parallelism.pipeline", ranks, f"{script} does not support pipeline parallelism", "Use 1.")


def path_names_the_family(context: BuildContext) -> Iterator[Fault]:
    """The name of the model suits the converters, which search the path of the checkpoint for words. Some families need
    a certain word, and some words make the Llama loader expect other weight names. The path ends with the model's
    name."""
    architecture, name, source = context.model.architecture, context.model.name, context.model.checkpoint
    word = release_data.NEEDED_PATH_WORDS.get(architecture)
    if word is not None and word not in name:
        yield wrong(
            "model.name",
            name,
            f"TensorRT-LLM converts {architecture} rightly only if the path of the checkpoint contains '{word}'",
            f"Rename the model config, e.g. to '{word}-{name}', or the folder that is given as --model.",
        )
    paths = {"model.name": name}
    if isinstance(source, LocalCheckpoint | GgufCheckpoint):
        paths["model.checkpoint.path"] = str(Path(source.path))
    for key, text in paths.items():
        for word in release_data.misleading_words(architecture, text):
            reason = (
                f"with '{word}' in a path TensorRT-LLM's Llama loader assumes another model and loads wrong weights"
            )
            yield wrong(key, text, reason, "Rename it.")
