"""Whether the engine backend has the model, and whether its checkpoint can be converted as asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.backends.tensorrt_llm import facts
from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.conversion import family_of, known_script_flags, method_of, needs_of_script
from pipeline.backends.tensorrt_llm.rules.problem import Rule
from pipeline.config.faults import Fault, did_you_mean, fault, one_of
from pipeline.config.schema import GgufCheckpoint, LocalCheckpoint, ModelShape

# Bound of model.parallelism.tensor.
_MOST_RANKS = 64


def architecture_is_known(case: Case) -> Iterator[Fault]:
    """The class must stand in the engine backend's map."""
    name = case.model.architecture
    if facts.model_class(name) is not None:
        return
    if name in facts.only_without_engines():
        text = f"found {name}, which TensorRT-LLM serves without engines only. Use backend: torch."
    else:
        text = (
            f"found {name}; TensorRT-LLM {facts.RELEASE_LINE} has no engine for it."
            f"{did_you_mean(name, facts.architectures())} Use backend: torch, or another model."
        )
    yield fault("model.architecture", text)


def only_text_is_served(case: Case) -> Iterator[Fault]:
    kinds = {"multimodal": "also takes images or sound", "no_text": "does not generate text"}
    for trait, what in kinds.items():
        if trait in case.traits:
            yield fault(
                "model.architecture",
                f"found {case.model.architecture}, which {what}; this pipeline serves text models.",
            )


def shape_is_known(case: Case) -> Iterator[Fault]:
    """Kernels, memory and ranks are judged by the sizes, before anything is downloaded."""
    if case.shape is None and facts.model_class(case.model.architecture) is not None:
        positions = ", with position_embedding, as some have ALiBi" if "maybe_alibi" in case.traits else ""
        yield fault(
            "model.shape",
            "is missing; the engine is planned before the checkpoint is there.",
            "State the sizes of the checkpoint's "
            f"config.json in the model's YAML, as configs/models/llama2-7b.yaml does{positions}.",
        )


def ranks_divide_the_model(case: Case) -> Iterator[Fault]:
    """Every tensor-parallel rank takes the same number of heads."""
    ranks, shape = case.model.parallelism, case.shape
    if shape is None:
        return
    if not _divides(shape, ranks.tensor):
        heads = f"{shape.num_attention_heads} attention heads"
        if shape.num_key_value_heads != shape.num_attention_heads:
            heads += f" and {shape.num_key_value_heads} key/value heads"
        fitting = [size for size in range(1, _MOST_RANKS + 1) if _divides(shape, size)]
        yield fault(
            "model.parallelism.tensor",
            f"found {ranks.tensor}, which does not divide the {heads} of {case.model.name}.",
            f"Use {one_of(fitting)}.",
        )
    if ranks.pipeline > shape.num_layers:
        yield fault(
            "model.parallelism.pipeline",
            f"found {ranks.pipeline}; {case.model.name} has only {shape.num_layers} layers.",
            "Use at most that many.",
        )


def _divides(shape: ModelShape, ranks: int) -> bool:
    """Whether each rank gets as many heads; a key/value head may be copied to several ranks."""
    kv_heads = shape.num_key_value_heads
    return shape.num_attention_heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def expert_ranks(case: Case) -> Iterator[Fault]:
    """For mixtures of experts moe_tp * moe_ep must be the tensor-parallel size; calibration takes no expert ranks."""
    trt, tensor = case.trt, case.model.parallelism.tensor
    asked = [size for size in (trt.moe_tensor_parallel, trt.moe_expert_parallel) if size != -1]
    if not asked:
        return
    key = "tensorrt_llm.moe_expert_parallel" if trt.moe_expert_parallel != -1 else "tensorrt_llm.moe_tensor_parallel"
    if "moe" not in case.traits:
        yield fault(key, f"found {asked[-1]}; {case.model.architecture} has no experts.", "Leave it at -1.")
        return
    if 0 in asked or (len(asked) == 2 and asked[0] * asked[1] != tensor) or (len(asked) == 1 and tensor % asked[0]):
        yield fault(
            key,
            f"found moe_tensor_parallel {trt.moe_tensor_parallel} x moe_expert_parallel {trt.moe_expert_parallel}; "
            f"their product must be model.parallelism.tensor = {tensor}.",
        )
    if trt.moe_expert_parallel > 1 and method_of(case) in ("quantize", "quantize.py"):
        yield fault(
            "tensorrt_llm.moe_expert_parallel",
            f"found {trt.moe_expert_parallel}; calibration for tensorrt_llm.quantization = '{trt.quantization}' takes "
            "no expert parallelism.",
            "Set it to 1 or -1.",
        )


def script_can_do_it(case: Case) -> Iterator[Fault]:
    """Families converted by a script can only do what that script has options for."""
    if method_of(case) != "convert_checkpoint.py" or facts.model_class(case.model.architecture) is None:
        return
    family = family_of(case.model.architecture)
    if family is None:
        yield fault(
            "model.architecture",
            f"found {case.model.architecture}, for which neither class nor script converts.",
            "Use another.",
        )
        return
    known = known_script_flags(family)
    for need in needs_of_script(case):
        if need.option not in known:
            lack = "cannot calibrate weights" if need.option is None else f"has no option --{need.option}"
            yield fault(
                need.key,
                f"found {need.found!r}; {case.model.architecture} is converted by the script of '{family}', which "
                f"{lack}.",
                f"Use {need.plain!r}.",
            )


def grok_takes_no_quantisation(case: Case) -> Iterator[Fault]:
    is_grok = facts.model_class(case.model.architecture) == "GrokForCausalLM"
    if is_grok and method_of(case) == "from_hugging_face" and case.trt.quantization != "none":
        yield fault(
            "tensorrt_llm.quantization",
            f"found '{case.trt.quantization}'; the converter of {case.model.architecture} takes no quantisation.",
            "Use 'none'.",
        )


def code_is_trusted(case: Case) -> Iterator[Fault]:
    """Beside TensorRT-LLM 1.2, transformers has no class for these; the converters run the checkpoint's own."""
    if "remote_code" in case.traits and not case.model.trust_remote_code:
        yield fault(
            "model.trust_remote_code",
            f"found false; checkpoints of {case.model.architecture} bring Python code that the conversion has to run.",
            "Read it, pin its revision and set this to true (the tokenizer must work without code), or use a model "
            "that brings none.",
        )


def path_says_what_it_is(case: Case) -> Iterator[Fault]:
    """Some families are told by a word in the path of the checkpoint; its copy lies in a folder of the model's name."""
    word = facts.NEEDED_PATH_WORDS.get(case.model.architecture)
    if word is not None and word not in case.model.name:
        yield fault(
            "model.name",
            f"found '{case.model.name}'; TensorRT-LLM converts {case.model.architecture} rightly only if the path of "
            f"the checkpoint contains '{word}'.",
            f"Rename the model config, e.g. to '{word}-{case.model.name}', or the folder that is given as --model.",
        )


def path_means_nothing_else(case: Case) -> Iterator[Fault]:
    """The Llama loader looks for words in the folder's name and then takes other weight names."""
    source = case.model.checkpoint
    named = [("model.name", case.model.name)]
    if isinstance(source, LocalCheckpoint | GgufCheckpoint):
        named.append(("model.checkpoint.path", str(Path(source.path))))
    for key, text in named:
        for word in facts.misleading_words(case.model.architecture, text):
            yield fault(
                key,
                f"found {text!r}; TensorRT-LLM's Llama loader takes '{word}' in a path for another kind of model and "
                "loads wrong weights.",
                "Rename it.",
            )


RULES: tuple[Rule, ...] = (
    architecture_is_known,
    only_text_is_served,
    shape_is_known,
    ranks_divide_the_model,
    expert_ranks,
    script_can_do_it,
    grok_takes_no_quantisation,
    code_is_trusted,
    path_says_what_it_is,
    path_means_nothing_else,
)
