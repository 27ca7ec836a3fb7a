"""Sizes and options of a model for the lean pass: `lean.json` in the engine's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from pipeline.checkpoint.architectures import LEAN_ARCHITECTURES
from pipeline.config.schema import Frozen, ResolvedConfig
from pipeline.errors import BuildError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PLAN, WEIGHTS = "lean.json", "model.safetensors"
# Maximum number of inputs of a matrix whose int8 sums fit into int32: 255 * 127 * inputs < 2**31.
MAX_INPUTS = 66_000
# Version of the factors in int8 engines (see `smoothing`). With another one, engines are built again.
SMOOTHING_VERSION = 1

Kind = Literal["float32", "bfloat16", "int8"]


def cache_head_bytes(kind: Kind, dim: int) -> int:
    """Bytes of a head's key, or of its value, in the KV cache beside weights of this kind: float32; or int16, which
    takes half the time to read, and a scale."""
    return 4 * dim if kind == "float32" else 2 * dim + 4


class LeanPlan(Frozen):
    """Sizes and settings of one model. Widths are those of the model; in the file they are padded to 16."""

    kind: Kind = Field(description="Type of the weights of linear layers.")
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    epsilon: float = Field(description="Added to the mean square in norms.")
    rotary_scale: float = Field(description="Factor of sines and cosines.")
    tied: bool = Field(description="Whether the output layer's weights are the embedding's.")
    head_norms: bool = Field(description="Whether queries and keys have a norm per head.")
    windows: tuple[int, ...] = Field(description="Sliding window of each layer, 0 for none.")

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads


def lean_kind(resolved: ResolvedConfig) -> Kind | None:
    """Type of the weights under these settings; None if they do not permit the lean pass. The checkpoint's config.json
    must permit it too."""
    if (
        resolved.device != "cpu"
        or resolved.model.parallelism.tensor > 1
        or resolved.model.architecture not in LEAN_ARCHITECTURES
    ):
        return None
    if resolved.profile.engine.quantization == "int8":
        return "int8"
    return None if resolved.dtype == "float16" else resolved.dtype


def plan_of(config: PretrainedConfig, kind: Kind, rotary_scale: float) -> LeanPlan | None:
    """The plan of a model with this config.json; None if the lean pass does not support the model."""
    from pipeline.checkpoint.model_config import kv_heads  # of no use to a server, which reads finished plans

    heads, (num_kv_heads, dim) = config.num_attention_heads, kv_heads(config)
    widest = max(config.hidden_size, config.intermediate_size, heads * dim)
    partial: Any = (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    head_norms = type(config).model_type == "qwen3"  # config.json may name another type than its class has
    if config.hidden_act != "silu" or dim % 2 or partial != 1.0 or (kind == "int8" and widest > MAX_INPUTS):
        return None
    if head_norms and dim % 16:  # heads follow each other without padding, which a norm needs
        return None
    window = getattr(config, "sliding_window", None) or 0
    kinds = getattr(config, "layer_types", None)
    windows = tuple(
        window if kinds is None or kinds[layer] == "sliding_attention" else 0
        for layer in range(config.num_hidden_layers)
    )
    return LeanPlan(
        kind=kind,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=heads,
        num_kv_heads=num_kv_heads,
        head_dim=dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        epsilon=config.rms_norm_eps,
        rotary_scale=rotary_scale,
        tied=bool(config.tie_word_embeddings),
        head_norms=head_norms,
        windows=windows,
    )


def read_plan(folder: Path) -> LeanPlan | None:
    """The plan in an engine's folder; None if the engine is not for the lean pass. Raises BuildError if the file is
    damaged."""
    try:
        return LeanPlan.model_validate_json((folder / PLAN).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise BuildError(
            f"{folder / PLAN} cannot be read; build the engine again with `lookahead engine --force`."
        ) from error
