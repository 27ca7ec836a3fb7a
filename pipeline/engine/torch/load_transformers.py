"""Loads an artifact as an engine over a transformers model."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from pipeline.engine.artifact import Artifact
from pipeline.engine.torch.engine import TorchEngine
from pipeline.engine.torch.linear_layers import can_quantize
from pipeline.engine.torch.load import limits_of
from pipeline.engine.torch.quantized_files import load_quantized
from pipeline.errors import BuildError


def load_transformers(artifact: Artifact, num_threads: int) -> TorchEngine:
    """Load the engine; see `load_engine`. num_threads: of a pass on the CPU. Raises BuildError if the
    kernels for int8 are missing."""
    resolved = artifact.resolved
    torch.set_num_threads(min(torch.get_num_threads(), num_threads))
    transformers_logging.disable_progress_bar()  # commands show their own progress
    sizes, dtype = resolved.profile.engine, getattr(torch, resolved.dtype)
    if sizes.quantization == "int8":
        if not can_quantize():
            raise BuildError(
                "engine.quantization = 'int8' of this model needs torch's FBGEMM kernels, which this CPU or this build "
                "of torch does not have. Use --set engine.quantization=none."
            )
        model = load_quantized(artifact.engine_dir, dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(artifact.engine_dir, dtype=dtype, local_files_only=True)
        model = model.to(resolved.device)
    limits = limits_of(artifact, model.config.get_text_config().vocab_size)
    return TorchEngine(model, limits)
