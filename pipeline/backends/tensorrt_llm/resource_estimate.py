"""Estimates disk space, host memory and GPU memory of building and serving from the model's sizes."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.backends.tensorrt_llm.build_context import BuildContext
from pipeline.backends.tensorrt_llm.conversion import method_of
from pipeline.engine.traits import Mode

_BYTES_OF_DTYPE = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
# Bytes per weight, including scales. Embeddings stay in the model's dtype.
_BYTES_OF_FORMAT = {"fp8": 1.0, "int8_wo": 1.01, "int4_wo": 0.51, "int4_awq": 0.52, "w4a8_awq": 0.52, "nvfp4": 0.57}
# GPU memory of a CUDA context, TensorRT's buffers and the decoder's state.
_CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """Memory per GPU. weight_bytes, activation_bytes: of all engines. kv_bytes_per_token: KV cache of one engine.
    kv_bytes_for_one: KV cache of one sequence of full length in every engine."""

    weight_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    kv_bytes_for_one: int

    @property
    def minimum_bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes + self.kv_bytes_for_one + _CONTEXT_BYTES


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimates of a plan. disk_bytes: copy of the checkpoint, converted checkpoint and engines. host_bytes: peak of
    the largest stage. kv_tokens: total tokens of all KV caches in the remaining GPU memory."""

    disk_bytes: int
    host_bytes: int
    gpu: GpuNeed
    kv_tokens: int


def weight_bytes(context: BuildContext) -> int:
    """Size of the converted weights of all ranks, in bytes."""
    whole = _BYTES_OF_DTYPE[context.resolved.dtype]
    num_embedding = 2 * context.known_shape.vocab_size * context.known_shape.hidden_size
    num_blocks = max(0, context.model.num_parameters - num_embedding)
    packed = _BYTES_OF_FORMAT.get(context.trt.quantization, whole)
    return int(num_blocks * packed + min(num_embedding, 2 * context.model.num_parameters) * whole)


def kv_bytes_per_token(context: BuildContext) -> int:
    """KV cache of one engine on one GPU, in bytes per token. Heads are repeated if there are more ranks than heads."""
    ranks = context.model.parallelism
    size = _BYTES_OF_DTYPE[context.resolved.dtype] if context.trt.kv_cache_dtype == "auto" else 1.0
    heads = max(1, -(-context.known_shape.num_key_value_heads // ranks.tensor))
    layers = -(-context.known_shape.num_layers // ranks.pipeline)
    return int(2 * layers * heads * context.known_shape.head_size * size)


def gpu_need(context: BuildContext) -> GpuNeed:
    """Memory that the engines of a config need on each GPU."""
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
    """Tokens of all KV caches in their share of the free GPU memory."""
    need = gpu_need(context)
    free = context.trt.gpu_memory_gib * (1 << 30) - need.weight_bytes - need.activation_bytes - _CONTEXT_BYTES
    tokens = int(free * context.trt.kv_cache_free_gpu_mem_fraction) // need.kv_bytes_per_token
    return max(0, tokens // context.trt.tokens_per_block * context.trt.tokens_per_block)


def kv_share(context: BuildContext, mode: Mode) -> float:
    """Fraction of the KV cache memory for the engine of a mode."""
    if len(context.modes) == 1:
        return 1.0
    return context.trt.lookahead_kv_share if mode == "lookahead" else 1.0 - context.trt.lookahead_kv_share


def kv_tokens_of(context: BuildContext, mode: Mode) -> int:
    """Tokens of an engine's KV cache, in whole blocks."""
    block = context.trt.tokens_per_block
    return max(block, int(kv_tokens(context) * kv_share(context, mode)) // block * block)


def estimate_of(context: BuildContext) -> Estimate:
    """The estimates of a config whose model's sizes are known."""
    source = int(context.model.num_parameters * min(_BYTES_OF_DTYPE[context.resolved.dtype], 2.0))
    converted = weight_bytes(context)
    # A conversion holds the source and the weights of one rank; a build holds its weights twice.
    converting = source + converted if method_of(context) == "from_hugging_face" else 2 * source
    return Estimate(
        disk_bytes=source + converted * (1 + len(context.modes)),
        host_bytes=max(converting, 2 * converted) + (4 << 30),
        gpu=gpu_need(context),
        kv_tokens=kv_tokens(context),
    )
