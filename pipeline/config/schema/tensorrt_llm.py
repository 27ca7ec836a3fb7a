"""The section `tensorrt_llm` of a profile."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.schema.base import Frozen


class TensorRTLLMConfig(Frozen):
    """Settings of the TensorRT-LLM backend, with the names of TensorRT-LLM's own tools where they have one."""

    speculation: Literal["lookahead", "trie", "none", "both"] = Field(
        "lookahead", description="Speculative mode of the engine; 'both' builds two engines."
    )
    quantization: Literal["none", "fp8", "int8_wo", "int4_wo", "int4_awq", "w4a8_awq", "nvfp4"] = Field(
        "none", description="Weight quantization of the engine."
    )
    kv_cache_dtype: Literal["auto", "fp8", "int8"] = Field("auto", description="Type of the KV cache.")
    compute_capability: int = Field(90, ge=70, le=130, description="Target GPU, e.g. 90 for H100 and H200.")
    tokens_per_block: Literal[16, 32, 64, 128] = Field(32, description="Tokens per KV cache block.")
    max_external_draft_len: int = Field(
        10, ge=1, le=256, description="Limit of draft tokens per step of a 'trie' engine."
    )
    kv_cache_free_gpu_mem_fraction: float = Field(
        0.9, gt=0, lt=1, description="Share of the free GPU memory for the KV cache."
    )
    enable_chunked_context: bool = Field(False, description="Split long prompts over several passes.")
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = Field(
        "guaranteed_no_evict",
        description="guaranteed_no_evict: never pause a running request. max_utilization: fill the batch.",
    )
    container_tag: str = Field(
        "26.07", pattern=r"^\d\d\.\d\d$", description="Tag of the Triton container that builds and serves."
    )
    gpu_memory_gib: float = Field(
        80.0, gt=0, description="Memory of one target GPU, for estimates and for the split of the KV cache."
    )
    enable_kv_cache_reuse: bool | None = Field(
        None, description="Keep the KV cache of finished requests. Unset: on, except with a lookahead engine."
    )
    kv_cache_host_memory_bytes: int = Field(0, ge=0, description="Host memory for offloaded KV cache blocks.")
    lookahead_kv_share: float = Field(
        0.5, gt=0, lt=1, description="With speculation 'both': the lookahead engine's share of the KV memory."
    )
    context_parallel: int = Field(1, ge=1, le=64, description="Context parallel ranks.")
    moe_tensor_parallel: int = Field(
        -1, ge=-1, description="Tensor parallel ranks of expert layers; -1: TensorRT-LLM's default."
    )
    moe_expert_parallel: int = Field(
        -1, ge=-1, description="Expert parallel ranks of expert layers; -1: TensorRT-LLM's default."
    )
    calib_dataset: str = Field(
        "cnn_dailymail", min_length=1, description="Calibration texts of quantization: a data set, or a folder."
    )
    calib_size: int = Field(512, ge=1, description="Number of calibration texts.")
    build_flags: dict[str, bool | int | str] = Field(
        default_factory=dict, description="Further options of trtllm-build by name, without dashes in front."
    )
    parameters: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="Further parameters of the served model by their name in config.pbtxt."
    )
    orchestrator: bool = Field(False, description="Serve in orchestrator mode rather than leader mode.")
    spawn_processes: bool = Field(True, description="In orchestrator mode: let the server start its workers.")
    allow_unvalidated: bool = Field(
        False, description="Also build combinations that NVIDIA does not test, such as lookahead decoding on Blackwell."
    )
