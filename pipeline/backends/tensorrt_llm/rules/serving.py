"""Checks of the parameters of the served model and of its launch."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.rules.faults import faults_of_options, wrong
from pipeline.config.faults import Fault


def known_parameters(context: BuildContext) -> Iterator[Fault]:
    """Names and types of the parameters, and parameters that another setting controls. The backend silently uses its
    default for an invalid value."""
    release, asked = release_data.release(), context.trt.parameters
    unknown = "is not a parameter of the tensorrtllm backend."
    elsewhere, no_use = release.parameters_set_elsewhere, release.parameters_of_no_use
    return faults_of_options("parameters", asked, release.parameters, elsewhere, no_use, unknown)


def lookahead_excludes(context: BuildContext) -> Iterator[Fault]:
    """Lookahead decoding supports neither sink tokens nor limited attention windows nor guided decoding."""
    if "lookahead" not in context.modes:
        return
    for name, reason in (
        ("sink_token_length", "lookahead decoding attends to all tokens"),
        ("max_attention_window_size", "lookahead decoding attends to all tokens"),
        ("guided_decoding_backend", "guided decoding and lookahead decoding exclude each other"),
    ):
        if value := context.parameter(name):
            remedy = "Remove it, or set tensorrt_llm.speculation to 'trie' or 'none'."
            yield wrong(f"tensorrt_llm.parameters.{name}", value, reason, remedy)


def parameters_have_what_they_need(context: BuildContext) -> Iterator[Fault]:
    """Parameters that the backend ignores or cannot load with these settings."""
    guided, weights = context.parameter("guided_decoding_backend"), context.parameter("gpu_weights_percent")
    if guided and not context.parameter("xgrammar_tokenizer_info_path"):
        reason = "the C++ backend reads the tokens from the file xgrammar_tokenizer_info_path, which is not set"
        yield wrong("tensorrt_llm.parameters.guided_decoding_backend", guided, reason, "Add it.")
    if (beams := context.parameter("max_beam_width")) not in (None, 1):
        yield wrong("tensorrt_llm.parameters.max_beam_width", beams, "the engine is built for one beam", "Remove it.")
    if isinstance(weights, int | float) and weights < 1 and not context.flag("weight_streaming"):
        reason = "only an engine built with tensorrt_llm.build_flags.weight_streaming = true keeps weights elsewhere"
        yield wrong("tensorrt_llm.parameters.gpu_weights_percent", weights, reason, "Add that, or remove this.")
    if context.parameter("kv_cache_onboard_blocks") is False and context.paged_context_off is None:
        reason = "the backend does not load an engine with paged context attention without it"
        yield wrong("tensorrt_llm.parameters.kv_cache_onboard_blocks", False, reason, "Remove it.")
    limit = context.parameter("max_tokens_in_paged_kv_cache")
    if len(context.modes) > 1 and limit is not None:
        reason = "with tensorrt_llm.speculation = 'both' each engine gets its own by tensorrt_llm.lookahead_kv_share"
        yield wrong("tensorrt_llm.parameters.max_tokens_in_paged_kv_cache", limit, reason, "Remove it.")


def ranks_are_those_that_are_started(context: BuildContext) -> Iterator[Fault]:
    """gpu_device_ids: one GPU per rank, commas inside an instance and semicolons between instances."""
    if not context.trt.spawn_processes and not context.trt.orchestrator:
        reason = "it belongs to tensorrt_llm.orchestrator = true"
        yield wrong("tensorrt_llm.spawn_processes", False, reason, "Remove it, or set that.")
    gpus = context.parameter("gpu_device_ids")
    if gpus is not None and any(len(ids.split(",")) != context.world_size for ids in str(gpus).split(";")):
        reason = f"the engine has {context.world_size} rank(s), and each instance needs as many GPUs"
        yield wrong(
            "tensorrt_llm.parameters.gpu_device_ids", gpus, reason, "List that many, or change model.parallelism."
        )


def strict_mode_is_of_the_torch_engine(context: BuildContext) -> Iterator[Fault]:
    """engine.strict_tensorrt_llm has no effect on this backend."""
    if context.engine.strict_tensorrt_llm:
        reason = "it lets the torch engine behave like this backend"
        yield wrong("engine.strict_tensorrt_llm", True, reason, "Remove it, or use backend: torch.")
