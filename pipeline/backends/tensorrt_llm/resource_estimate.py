"""Estimates disk, host memory and GPU memory of a build and of serving from the model's sizes, before the build."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.conversion import method_of
from pipeline.engine.chains import Mode

_BYTES_OF_DTYPE = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
# Per weight, scales of groups and channels included; embeddings stay in the model's dtype.
_BYTES_OF_FORMAT = {"fp8": 1.0, "int8_wo": 1.01, "int4_wo": 0.51, "int4_awq": 0.52, "w4a8_awq": 0.52, "nvfp4": 0.57}
# Room of a CUDA context, TensorRT's own buffers and the decoder's state.
_CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """Per GPU. weight_bytes, activation_bytes: of all engines together. kv_bytes_per_token: of one engine.
    kv_bytes_for_one: KV of one sequence of full length per engine, all engines together."""

    weight_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    kv_bytes_for_one: int

    @property
    def minimum_bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes + self.kv_bytes_for_one + _CONTEXT_BYTES


@dataclass(frozen=True, slots=True)
class Estimate:
    """disk_bytes: checkpoint copy, converted checkpoint and engines together. host_bytes: peak of the largest stage.
    kv_tokens: tokens that all instances' KV caches hold together in what the GPU has left."""

    disk_bytes: int
    source_bytes: int
    converted_bytes: int
    engine_bytes: int
    host_bytes: int
    gpu: GpuNeed
    kv_tokens: int


def weight_bytes(context: BuildContext) -> int:
    """Weights of all ranks together, as converted."""
    whole = _BYTES_OF_DTYPE[context.resolved.dtype]
    num_embedding = 2 * context.known_shape.vocab_size * context.known_shape.hidden_size
    num_blocks = max(0, context.model.num_parameters - num_embedding)
    packed = _BYTES_OF_FORMAT.get(context.trt.quantization, whole)
    return int(num_blocks * packed + min(num_embedding, 2 * context.model.num_parameters) * whole)


def kv_bytes_per_token(context: BuildContext) -> int:
    """KV cache of one engine on one GPU. Heads are repeated if there are fewer than ranks."""
    ranks = context.model.parallelism
    size = _BYTES_OF_DTYPE[context.resolved.dtype] if context.trt.kv_cache_dtype == "auto" else 1.0
    heads = max(1, -(-context.known_shape.num_key_value_heads // ranks.tensor))
    layers = -(-context.known_shape.num_layers // ranks.pipeline)
    return int(2 * layers * heads * context.known_shape.head_size * size)


def gpu_need(context: BuildContext) -> GpuNeed:
    ranks, engines = context.model.parallelism, len(context.modes)
    per_rank = weight_bytes(context) // (ranks.tensor * ranks.pipeline)
    width = 4 * context.known_shape.hidden_size + 3 * -(-context.known_shape.intermediate_size // ranks.tensor)
    activations = int(context.engine.max_num_tokens * width * _BYTES_OF_DTYPE[context.resolved.dtype])
    # Logits of the tokens of a step: one row per sequence and draft token.
    rows = max(context.engine.max_batch_size * (context.max_draft_len(mode) + 1) for mode in context.modes)
    logits = 4 * rows * context.known_shape.vocab_size
    per_token = kv_bytes_per_token(context)
    return GpuNeed(
        weight_bytes=per_rank * engines,
        activation_bytes=(activations + logits) * engines,
        kv_bytes_per_token=per_token,
        kv_bytes_for_one=per_token * context.engine.max_seq_len * engines,
    )


def kv_tokens(context: BuildContext) -> int:
    """Tokens that fit into the share of free GPU memory, over all instances."""
    need = gpu_need(context)
    free = context.trt.gpu_memory_gib * (1 << 30) - need.weight_bytes - need.activation_bytes - _CONTEXT_BYTES
    tokens = int(free * context.trt.kv_cache_free_gpu_mem_fraction) // need.kv_bytes_per_token
    return max(0, tokens // context.trt.tokens_per_block * context.trt.tokens_per_block)


def kv_share(context: BuildContext, mode: Mode) -> float:
    """Share of one engine in the KV cache's memory."""
    if len(context.modes) == 1:
        return 1.0
    return context.trt.lookahead_kv_share if mode == "lookahead" else 1.0 - context.trt.lookahead_kv_share


def kv_tokens_of(context: BuildContext, mode: Mode) -> int:
    """Tokens that one engine's share of the KV cache holds, in whole blocks."""
    block = context.trt.tokens_per_block
    return max(block, int(kv_tokens(context) * kv_share(context, mode)) // block * block)


def estimate_of(context: BuildContext) -> Estimate:
    source = int(context.model.num_parameters * min(_BYTES_OF_DTYPE[context.resolved.dtype], 2.0))
    converted = weight_bytes(context)
    engines = converted * len(context.modes)
    # Conversion holds the source beside the rank that is being made; a build holds its weights twice.
    converting = source + converted if method_of(context) == "from_hugging_face" else 2 * source
    return Estimate(
        disk_bytes=source + converted + engines,
        source_bytes=source,
        converted_bytes=converted,
        engine_bytes=engines,
        host_bytes=max(converting, 2 * converted) + (4 << 30),
        gpu=gpu_need(context),
        kv_tokens=kv_tokens(context),
    )
