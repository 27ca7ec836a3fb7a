"""Settings of the served model: keyword arguments of `LLM()` (model.yaml) and our draft settings (drafts.json).

The stock model can run model.yaml alone, with NGram drafts. drafts.json selects another draft method: the suffix
automaton of newer releases, which drafts on the GPU, or the trie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field

from pipeline.backends.tensorrt_llm.build_context import build_context_of
from pipeline.config.faults import fault, one_of, raise_faults
from pipeline.config.folders import expanded
from pipeline.config.schema import (
    Frozen,
    GgufCheckpoint,
    HubCheckpoint,
    LocalCheckpoint,
    ResolvedConfig,
    SourceConfig,
    TensorRTLLMConfig,
)
from pipeline.errors import ConfigError
from pipeline.llmapi import Method

# Longest context that NGram matches: the default of newer releases and of NVIDIA's examples. Older releases have no
# default.
NGRAM_MATCH_LEN = 2
# Value of max_matching_ngram_size for the longest match.
LONGEST_MATCH = -1


class DraftSettings(Frozen):
    """Draft method inside the LLM API, and its limits."""

    method: Method = Field(
        description="auto: suffix_automaton if the release has it, else trie. suffix_automaton: SADecodingConfig. "
        "trie: our drafter. ngram, none: as in model.yaml."
    )
    max_draft_len: int = Field(ge=1, description="Limit of draft tokens per step.")
    sources: tuple[SourceConfig, ...] = Field(description="Draft sources of the trie drafter.")
    shared: bool = Field(description="Whether drafts may come from other requests' outputs.")


def draft_settings(resolved: ResolvedConfig, method: Method) -> DraftSettings:
    """Settings from a profile: its limit of external drafts, and its sources 'trie' and 'prompt'. Raises ConfigError if
    the method needs a source and the profile has none."""
    sources = [source for source in resolved.profile.drafting.sources if source.kind in ("trie", "prompt")]
    shared = any(source.kind == "trie" for source in sources)
    # The trie already contains the request's own text, so source prompt would find the same drafts.
    chosen = [source for source in sources if source.kind == "trie" or not shared]
    if method in ("auto", "trie") and not chosen:
        raise ConfigError(
            f"profile {resolved.profile.name}: drafting.sources holds neither 'trie' nor 'prompt', which the trie "
            "drafter needs. Add one, or use --llmapi suffix_automaton or ngram."
        )
    return DraftSettings(
        method=method,
        max_draft_len=resolved.profile.tensorrt_llm.max_external_draft_len,
        sources=tuple(chosen),
        shared=shared,
    )


def model_yaml(resolved: ResolvedConfig, settings: DraftSettings, decoupled: bool = False) -> dict[str, Any]:
    """Content of model.yaml: keyword arguments of `LLM()`, and `triton_config`. decoupled: see `render_llmapi`. Raises
    ConfigError with all settings that the LLM API does not have."""
    profile, trt = resolved.profile, resolved.profile.tensorrt_llm
    ranks = resolved.model.parallelism
    _refuse_engine_settings(profile.name, trt)
    arguments: dict[str, Any] = {
        **checkpoint_arguments(resolved),
        "backend": "pytorch",
        "dtype": resolved.model.gpu_dtype,
        "tensor_parallel_size": ranks.tensor,
        "pipeline_parallel_size": ranks.pipeline,
        "max_batch_size": profile.engine.max_batch_size,
        "max_num_tokens": profile.engine.max_num_tokens,
        "max_seq_len": profile.engine.max_seq_len,
        "enable_chunked_prefill": trt.enable_chunked_context,
        "kv_cache_config": {
            "enable_block_reuse": build_context_of(resolved).kv_cache_reuse("none"),
            "free_gpu_memory_fraction": trt.kv_cache_free_gpu_mem_fraction,
            "host_cache_size": trt.kv_cache_host_memory_bytes,
            "dtype": trt.kv_cache_dtype,
            "tokens_per_block": trt.tokens_per_block,
        },
    }
    experts = {"moe_tensor_parallel_size": trt.moe_tensor_parallel, "moe_expert_parallel_size": trt.moe_expert_parallel}
    arguments |= {name: ranks_of for name, ranks_of in experts.items() if ranks_of != -1}
    if settings.method != "none":
        # Drafts on the host need the tokens of the previous step. NVIDIA's tests disable it too.
        arguments["disable_overlap_scheduler"] = True
        arguments["speculative_config"] = ngram_config(settings)
    arguments["triton_config"] = {"max_batch_size": 0, "decoupled": decoupled, "cancellation_check_period_ms": 100}
    return arguments


def ngram_config(settings: DraftSettings) -> dict[str, Any]:
    """NGramDecodingConfig as in model.yaml."""
    return {
        "decoding_type": "NGram",
        "max_draft_len": settings.max_draft_len,
        "max_matching_ngram_size": NGRAM_MATCH_LEN,
        "is_keep_all": True,
        "is_use_oldest": True,
        "is_public_pool": settings.shared,
    }


def suffix_automaton_arguments(settings: DraftSettings) -> dict[str, Any]:
    """Arguments of the LLM API's SADecodingConfig."""
    return {
        "max_draft_len": settings.max_draft_len,
        "max_matching_ngram_size": LONGEST_MATCH,
        "enable_global_pool": settings.shared,
    }


def checkpoint_arguments(resolved: ResolvedConfig) -> dict[str, Any]:
    """Arguments of the LLM API for the checkpoint: a folder, or a repository on the hub. Raises ConfigError for other
    sources."""
    source, code = resolved.model.checkpoint, {"trust_remote_code": resolved.model.trust_remote_code}
    if isinstance(source, LocalCheckpoint):
        return {"model": str(expanded(source.path).absolute()), **code}
    if isinstance(source, HubCheckpoint):
        return {"model": source.repo_id, "revision": source.revision, **code}
    kind = "a GGUF file" if isinstance(source, GgufCheckpoint) else f"source '{source.source}'"
    raise ConfigError(
        f"model {resolved.model.name}: model.checkpoint is {kind}, which the LLM API does not read. Use a checkpoint "
        "folder or a model of the hub."
    )


def _refuse_engine_settings(profile: str, trt: TensorRTLLMConfig) -> None:
    """Raise ConfigError with all settings that change an engine and that the LLM API cannot follow."""
    checks = (
        ("quantization", trt.quantization, ("none",), "it serves checkpoints in their own format"),
        ("kv_cache_dtype", trt.kv_cache_dtype, ("auto", "fp8"), "it has no such KV cache"),
        ("context_parallel", trt.context_parallel, (1,), "it has no context parallelism for drafts"),
    )
    raise_faults(
        [
            replace(
                fault(
                    f"tensorrt_llm.{name}",
                    f"found {found!r}; --llmapi cannot use it: {reason}.",
                    f"Use {one_of(right)}.",
                ),
                where=f"profile {profile}",
            )
            for name, found, right, reason in checks
            if found not in right
        ]
    )
