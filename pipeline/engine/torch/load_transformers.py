"""Loads an artifact as an engine over a transformers model."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

from pipeline.engine.artifact import Artifact
from pipeline.engine.contract import EngineLimits
from pipeline.engine.torch.engine import TorchEngine
from pipeline.engine.torch.linear_layers import can_quantize
from pipeline.engine.torch.load import limits_of
from pipeline.engine.torch.quantized_files import load_quantized
from pipeline.engine.torch.slots import SlotEngine
from pipeline.errors import BuildError


def load_transformers(artifact: Artifact, rank: int, num_threads: int) -> SlotEngine:
    """Load the engine of one process; see `load_rank`. Raises BuildError if the kernels for int8 are missing, or the
    model does not fit into the memory of its GPU."""
    resolved = artifact.resolved
    torch.set_num_threads(min(torch.get_num_threads(), num_threads))
    transformers_logging.disable_progress_bar()  # commands show their own progress
    try:
        model = _load_model(artifact, rank)
        limits = limits_of(artifact, model.config.get_text_config().vocab_size)
        num_shards = resolved.model.parallelism.tensor
        if num_shards > 1:
            return TorchEngine(model, limits, num_shards=head_shards(model.config, num_shards))
        return engine_over(model, limits)
    except torch.OutOfMemoryError as error:
        raise BuildError(
            f"The model {resolved.model.name} in {resolved.dtype} with its KV cache does not fit into the memory of "
            "the GPU. Lower engine.max_batch_size or engine.max_seq_len, or use a smaller model."
        ) from error


def engine_over(model: PreTrainedModel, limits: EngineLimits, num_slots: int | None = None) -> SlotEngine:
    """The fastest engine for a loaded model, which it owns. num_slots: see `TorchEngine`."""
    if model.device.type == "cuda":
        from pipeline.engine.torch.gpu.engine import GpuEngine, gpu_plan  # imports `triton`

        plan = gpu_plan(model)
        if plan is not None:
            return GpuEngine(model, plan, limits, num_slots)
    return TorchEngine(model, limits, num_slots)


def _load_model(artifact: Artifact, rank: int) -> PreTrainedModel:
    resolved = artifact.resolved
    sizes, dtype = resolved.profile.engine, getattr(torch, resolved.dtype)
    if sizes.quantization == "int8":
        if not can_quantize():
            raise BuildError(
                "engine.quantization = 'int8' of this model needs torch's FBGEMM kernels, which this CPU or this build "
                "of torch does not have. Use --set engine.quantization=none."
            )
        return load_quantized(artifact.engine_dir, dtype)
    # A shard is loaded by the plan of transformers. `build.check` has checked that there is one, `start_ranks` that the
    # number of shards is possible.
    num_shards = resolved.model.parallelism.tensor
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        artifact.engine_dir,
        dtype=dtype,
        local_files_only=True,
        distributed_config=DistributedConfig(tp_size=num_shards, tp_plan="auto") if num_shards > 1 else None,
    )
    if num_shards > 1 or resolved.device != "cuda":
        return model
    torch.cuda.set_device(rank)  # on which `triton` launches kernels
    return model.to(f"cuda:{rank}")


def head_shards(config: PretrainedConfig, num_shards: int) -> int:
    """Number of parts of the key/value heads in the tensor-parallel plan; some families gather them before
    attention."""
    kinds = [
        kind
        for name, kind in config.base_model_tp_plan.items()
        if name.endswith(("k_proj", "qkv_proj", "query_key_value"))
    ]
    return num_shards if kinds and all(kind == "colwise" for kind in kinds) else 1
