"""Settings with which `lookahead validate-gpu` tries this backend on the GPU that is here."""

from __future__ import annotations

from pipeline.backends.tensorrt_llm.environment import Gpu, detect
from pipeline.backends.tensorrt_llm.rules.draft_modes import UNTESTED_GPUS
from pipeline.errors import BuildError


def validation_settings() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Overrides that fit the first GPU, and those of the first profile besides. Raises BuildError where there is no
    GPU, or nothing to build with."""
    gpu = _first_gpu()
    memory = f"tensorrt_llm.gpu_memory_gib={gpu.memory_mib / 1024:.0f}"
    # Plain decoding, lookahead and trie on one server, so that they can be compared.
    modes = "both" if gpu.compute_capability < UNTESTED_GPUS else "trie"
    of_gpu = (f"tensorrt_llm.compute_capability={gpu.compute_capability}", memory)
    return of_gpu, (f"tensorrt_llm.speculation={modes}",)


def _first_gpu() -> Gpu:
    found = detect()
    if not found.gpus:
        raise BuildError(
            "nvidia-smi shows no GPU, and the TensorRT-LLM backend needs one; run this on the GPU machine, or try the "
            "same stages on the CPU with --backend torch."
        )
    if found.where == "nowhere":
        raise BuildError(
            "Neither TensorRT-LLM nor docker was found; work in NVIDIA's container, or install docker with the NVIDIA "
            "container toolkit (docs/how-to/validate-on-gpu.md)."
        )
    return found.gpus[0]
