"""Memory that a model needs on a CPU under a profile, and the setting that makes it fit this machine."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.config.hardware import Hardware
from pipeline.config.places import Places
from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.memory import slots_for
from pipeline.engine.torch.build import stored_bytes, weight_bytes
from pipeline.engine.torch.lean.plan import cache_entry_bytes, lean_kind

# Memory of an engine relative to its weights: packed copies of the layers and buffers come on top. The other models
# of the server need a fixed amount.
_WEIGHTS_FACTOR = 1.6
_OTHER_BYTES = 900 << 20
_CPU = Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)
# Settings that need less memory, in the order of the change that they make.
_SMALLER = ("", "model.dtype=bfloat16", "engine.quantization=int8")


class MemoryFit(NamedTuple):
    """needed_bytes: memory of the model as configured. setting: override that makes it fit; "" if none is needed, None
    if no override is enough."""

    needed_bytes: int
    setting: str | None


def serving_bytes(engine_bytes: int) -> int:
    """Memory of a server without its KV cache. engine_bytes: size of the engine on disk."""
    return int(engine_bytes * _WEIGHTS_FACTOR) + _OTHER_BYTES


def kv_bytes(resolved: ResolvedConfig) -> int:
    """Size of the KV cache in bytes; 0 if the model's config has no shape."""
    shape, engine = resolved.model.shape, resolved.profile.engine
    if shape is None:
        return 0
    per_token = 2 * shape.num_layers * shape.num_key_value_heads * shape.head_size
    bytes_per_value = weight_bytes(resolved) // resolved.model.num_parameters
    if (kind := lean_kind(resolved)) is not None:
        bytes_per_value = cache_entry_bytes(kind)
    return per_token * bytes_per_value * slots_for(engine.max_batch_size) * engine.max_seq_len


def memory_fit(model: str, profile: str, where: Places, available: int) -> MemoryFit:
    """Compare the memory that a model needs on a CPU with the available bytes. Raises ConfigError if the config is
    invalid."""
    needs = {}
    for setting in _SMALLER:
        overrides = ("device=cpu", "backend=torch", *([setting] if setting else []))
        resolved = resolve_config(model, profile, overrides, where=where, hardware=_CPU, backend_rules=False)
        # A build holds the weights in the model's dtype.
        serving = serving_bytes(stored_bytes(resolved)) + kv_bytes(resolved)
        needs[setting] = max(weight_bytes(resolved), serving)
    fitting = [setting for setting, needed in needs.items() if needed <= available]
    return MemoryFit(needs[""], fitting[0] if fitting else None)
