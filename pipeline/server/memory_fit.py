"""Memory that a model needs on a CPU under a profile, and the setting that makes it fit this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.checkpoint.architectures import UNQUANTIZED
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.memory import slots_for
from pipeline.engine.torch.build import stored_bytes, weight_bytes
from pipeline.engine.torch.lean.plan import cache_head_bytes, lean_kind

# Memory of an engine relative to its weights: packed copies of the layers and buffers come on top. The other models
# of the server need a fixed amount.
_WEIGHTS_FACTOR = 1.6
_OTHER_BYTES = 900 << 20


class MemoryFit(NamedTuple):
    """Memory that a model needs on this machine. needed_bytes: as configured. setting: override that makes it fit; ""
    if none is needed, None if no override is enough."""

    needed_bytes: int
    setting: str | None


def kv_bytes(resolved: ResolvedConfig) -> int:
    """Size of the KV cache in bytes; 0 if the model's config has no shape."""
    shape, engine = resolved.model.shape, resolved.profile.engine
    if shape is None:
        return 0
    per_head = shape.head_size * weight_bytes(resolved) // resolved.model.num_parameters
    if (kind := lean_kind(resolved)) is not None:
        per_head = cache_head_bytes(kind, shape.head_size)
    per_token = 2 * shape.num_layers * shape.num_key_value_heads * per_head
    return per_token * slots_for(engine.max_batch_size) * engine.max_seq_len


def serving_bytes(engine_bytes: int) -> int:
    """Memory of a server without its KV cache. engine_bytes: size of the engine on disk."""
    return int(engine_bytes * _WEIGHTS_FACTOR) + _OTHER_BYTES


def memory_fit(resolved: ResolvedConfig, available: int, built_bytes: int = 0) -> MemoryFit:
    """Compare the memory that a model needs on a CPU, to be built and served, with the available bytes. built_bytes:
    size of the engine if it is built already; the KV cache does not count then, because the system allocates its pages
    at their first write, and the engine checks its size."""
    needs = {}
    for setting, other in _alternatives(resolved):
        # The number of parameters may be unknown, the ratio of two sizes is not.
        size = built_bytes * stored_bytes(other) // stored_bytes(resolved) if built_bytes else stored_bytes(other)
        # A build holds the weights in the model's dtype.
        build = 0 if built_bytes and not setting else weight_bytes(other)
        needs[setting] = max(build, serving_bytes(size) + (0 if built_bytes else kv_bytes(other)))
    fitting = [setting for setting, needed in needs.items() if needed <= available]
    return MemoryFit(needs[""], fitting[0] if fitting else None)


def _alternatives(resolved: ResolvedConfig) -> Iterator[tuple[str, ResolvedConfig]]:
    """Overrides that need less memory, in the order of the change that they make, and the configs with them."""
    yield "", resolved
    if resolved.dtype == "float32" and resolved.profile.engine.quantization == "none":
        yield "model.dtype=bfloat16", resolved.model_copy(update={"dtype": "bfloat16"})
        if resolved.model.architecture not in UNQUANTIZED:
            yield "engine.quantization=int8", resolved.with_settings("engine", quantization="int8")
