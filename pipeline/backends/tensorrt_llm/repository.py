"""Config of `tensorrt_llm` for TensorRT-LLM's C++ backend: all tensors and parameters of release line 1.2.

Every value comes from the config of the engine's plan, so that engine, instance and requests have the same W, N and G.
Parameters without a value are omitted, except for four that the backend requires even if they are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from pipeline.backends.tensorrt_llm.build_context import BuildContext, build_context_of
from pipeline.backends.tensorrt_llm.instance import Instance, engine_dirs, instances_of
from pipeline.backends.tensorrt_llm.release_data import release
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact
from pipeline.repository import model_config
from pipeline.repository.contract import model_contract

Value = bool | int | float | str


def target_configs(resolved: ResolvedConfig, artifact: Artifact) -> list[pb.ModelConfig]:
    """Configs of the one or two models with an engine."""
    context = build_context_of(resolved)
    engines = zip(instances_of(context), engine_dirs(artifact), strict=True)
    return [target(context, instance, folder, artifact) for instance, folder in engines]


def target(context: BuildContext, instance: Instance, engine: Path, artifact: Artifact) -> pb.ModelConfig:
    """Config of a model with an engine. It is decoupled, because streams and requests with several rows have several
    responses."""
    contract = model_contract("tensorrt_llm")
    size = context.engine.max_batch_size
    config = model_config.new_config(
        instance.triton_model, size, contract.inputs, contract.outputs, backend="tensorrtllm"
    )
    config.model_transaction_policy.decoupled = True
    model_config.set_batching(config, context.resolved)
    model_config.set_queue_bound(config, context.resolved)
    values = parameter_values(context, instance, engine, artifact.tokenizer_dir)
    model_config.set_parameters(config, {name: _text(value) for name, value in values.items()})
    return config


def parameter_values(context: BuildContext, instance: Instance, engine: Path, tokenizer: Path) -> dict[str, Value]:
    """Typed parameters of an instance. For others the backend uses its defaults."""
    trt = context.trt
    known = release().parameters
    values: dict[str, Value] = {name: entry.default for name, entry in known.items() if entry.default is not None}
    values |= {
        **dict.fromkeys(model_contract("tensorrt_llm").required_parameters, ""),
        "gpt_model_type": "inflight_fused_batching",
        "tokenizer_dir": str(tokenizer),
        "gpt_model_path": str(engine),
        "max_beam_width": 1,
        "batch_scheduler_policy": trt.batch_scheduler_policy,
        "kv_cache_free_gpu_mem_fraction": instance.kv_fraction,
        "kv_cache_host_memory_bytes": trt.kv_cache_host_memory_bytes,
        "enable_kv_cache_reuse": instance.kv_cache_reuse,
        "enable_chunked_context": trt.enable_chunked_context,
        "exclude_input_in_output": False,
    }
    values |= _of_mode(instance)
    if instance.kv_tokens is not None:
        values["max_tokens_in_paged_kv_cache"] = instance.kv_tokens
    if instance.participant_ids is not None:
        values["participant_ids"] = instance.participant_ids
    return values | trt.parameters


def _of_mode(instance: Instance) -> Mapping[str, Value]:
    """Parameters of a speculative mode. The backend reads W, N and G only with decoding_mode lookahead, and then
    requires all three. For external drafts it reads the mode from the engine."""
    if instance.lookahead is not None:
        window, ngram, candidates = instance.lookahead.sizes
        return {
            "decoding_mode": "lookahead",
            "lookahead_window_size": window,
            "lookahead_ngram_size": ngram,
            "lookahead_verification_set_size": candidates,
        }
    return {"decoding_mode": "top_k_top_p"} if instance.mode == "none" else {}


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
